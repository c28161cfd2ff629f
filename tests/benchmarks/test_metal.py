"""`mlx_pam bench`: its manners, its record, and a real run on sizes that take seconds."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from mlx_pam import cli
from mlx_pam.benchmarks import chips, comparison, cost_model, forms, metal
from mlx_pam.benchmarks.forms import Operator
from mlx_pam.benchmarks.libraries import Unavailable
from mlx_pam.benchmarks.metal import BenchConfig
from mlx_pam.benchmarks.workloads import WORKLOADS
from mlx_pam.config import PRESETS
from mlx_pam.errors import ConfigError

TURN = {"seq_len": 40, "batch_size": 2, "dtype": "float32", "backward": True}
TINY = ["--quick", "--part", "operator", "--dtype", "float32", "--longest", "32"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--chnk", "32"], "there is no option '--chnk'; did you mean --chunk?"),
        (["--part", "everything"], "--part must be one of all, operator, decode"),
        (["--longest", "0"], "--longest must be a whole number >= 1, got 0"),
        (["--rounds", "many"], "--rounds must be a whole number >= 1, got 'many'"),
        (["--chunk", "12"], "--chunk must be a multiple of 8 up to 40, got 12"),
        (["--chunk", "64"], "--chunk must be a multiple of 8 up to 40, got 64"),
        (["--chunk", "wide"], "--chunk must be a multiple of 8 up to 40, got 'wide'"),
        (["--slab", "200"], "--slab must be a multiple of 8 up to 128, got 200"),
        (["--seconds", "0"], "--seconds must be a number > 0, got 0.0"),
        (["--chip", "m99"], "--chip must be one of auto, measured, m1, "),
        (["--backend", "jax"], "--backend must be one of mlx, torch, got 'jax'"),
        (["--json"], "--json needs a value"),
    ],
)
def test_a_wrong_word_is_a_line_and_code_2(words: list[str], message: str, capsys) -> None:
    assert cli.main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_record_that_cannot_be_written_is_known_before_the_measurements(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(metal, "measure", lambda *_: pytest.fail("it has begun"))
    (tmp_path / "file").touch()
    assert cli.main(["bench", "--json", str(tmp_path / "file" / "record.json")]) == 2
    assert "--json must be a file that can be written" in capsys.readouterr().err
    assert cli.main(["bench", "--json", str(tmp_path)]) == 2


def test_a_quick_run_prints_tables_and_writes_one_record(tmp_path: Path, capsys) -> None:
    file = tmp_path / "new" / "record.json"
    assert cli.main(["bench", *TINY, "--json", str(file)]) == 0
    page = capsys.readouterr().out
    record = json.loads(file.read_text("utf-8"), parse_constant=lambda word: pytest.fail(word))
    assert record["benchmark"] == "mlx_pam bench"
    assert {"machine", "versions", "date", "commit", "settings", "description"} <= record.keys()
    assert "not measurements" in record["MODEL"]["note"]
    rows = [row for row in record["rows"] if row["part"] == "operator"]
    measured = [row for row in rows if "seconds" in row]
    assert {(row["form"], row["backward"]) for row in measured} >= {
        (form, backward) for form in ("parallel", "chunkwise") for backward in (False, True)
    }
    for row in measured:
        assert row["seq_len"] == 32
        assert len(row["rates"]) == 2
        assert 0 < row["model_seconds"] < 10
        assert row["seconds"] == pytest.approx(row["batch_size"] * 32 / row["median"])
    for row in rows:
        if "skipped" in row:  # no Metal here
            assert row["form"] == "fused"
            assert page.count(row["skipped"]) == 1  # one line, however many rows
    assert "MODEL" in page
    assert "parallel" in page


def tiles(chunk: tuple[int, ...]) -> list[dict]:
    config = BenchConfig(part="operator", scale="100m", chunk=chunk, slab=16)
    rows = [row for group in metal._groups(config) for row in group]
    fused = [row.job.settings for row in rows if row.about.get("form") == "fused"]
    return list({json.dumps(settings): settings for settings in fused}.values())


def test_chunks_and_slabs_to_try_are_processes_of_their_own() -> None:
    assert [(s.get("CHUNK"), s["WIDEST_SLAB"]) for s in tiles((16, 32))] == [(16, 16), (32, 16)]
    assert [s.get("CHUNK") for s in tiles(())] == [None]


def test_a_tile_that_the_kernels_do_not_know_is_refused(monkeypatch) -> None:
    launch = pytest.importorskip("mlx_pam.ops.metal.launch")
    monkeypatch.setattr(launch, "CHUNK", launch.CHUNK)  # put back afterwards
    Operator(form="fused", scale="5m", backend="mlx", CHUNK=16)
    assert launch.CHUNK == 16
    assert hasattr(launch, "WIDEST_SLAB")
    with pytest.raises(Unavailable, match="have no WIDTH to set"):
        Operator(form="fused", scale="5m", backend="mlx", WIDTH=16)


def test_windows_double_up_to_the_longest() -> None:
    assert BenchConfig().lengths == (512, 1024, 2048, 4096, 8192)
    assert BenchConfig(longest=3000).lengths == (512, 1024, 2048)
    assert BenchConfig(longest=100).lengths == (100,)
    assert BenchConfig(quick=True).lengths == (512,)


@pytest.mark.parametrize("quick", [False, True])
def test_every_row_has_a_name_of_its_own_and_a_workload_that_takes_it(quick: bool) -> None:
    rows = [row for group in metal._groups(BenchConfig(quick=quick)) for row in group]
    assert len({row.name for row in rows}) == len(rows)
    parts = {row.about["part"] for row in rows}
    assert parts == {"product", "copy", "chain", "operator", "decode"}
    assert {row.job.workload for row in rows} <= WORKLOADS.keys()
    contexts = {row.about["context"] for row in rows if row.about["part"] == "decode"}
    assert contexts == ({0, 2048} if quick else {0, 2048, 8192, 32768})


@pytest.mark.parametrize("form", ["recurrent", "parallel", "chunkwise"])
@pytest.mark.parametrize("backward", [False, True])
def test_the_operator_runs_in_either_library(backend, form: str, backward: bool) -> None:
    workload = Operator(form=form, scale="5m", backend=backend.name)
    facts = workload.prepare(**{**TURN, "backward": backward})
    assert workload.step() == 80
    workload.synchronise()
    outputs = workload._call()
    assert len(outputs) == (7 if backward else 2)
    assert tuple(outputs[0].shape) == (2, 40, 2, 2, 16)
    assert facts["chunk"] == 32
    assert workload.peak_bytes() > 0
    workload.rest()


def test_arrays_that_would_not_fit_are_refused_before_they_are_made(monkeypatch) -> None:
    workload = Operator(form="parallel", scale="100m", backend="mlx")
    monkeypatch.setattr(workload, "array", lambda *_: pytest.fail("it was made"))
    with pytest.raises(Unavailable, match="T x T arrays of 4000000 tokens take"):
        workload.prepare(**{**TURN, "seq_len": 4_000_000})
    assert forms.SQUARE_BYTES[False] < forms.SQUARE_BYTES[True]


def test_models_decode_in_float32_whose_product_is_always_measured() -> None:
    probes = list(metal._probes(BenchConfig(dtype="bfloat16")))
    assert {row.about.get("dtype") for row in probes} == {"float32", "bfloat16", None}
    probes = list(metal._probes(BenchConfig(dtype="float32")))
    assert {row.about.get("dtype") for row in probes} == {"float32", None}


def probes(**medians: float) -> dict[str, dict]:
    found = {name.replace("_", " "): {"median": value} for name, value in medians.items()}
    return found | {"fused": {"skipped": "no GPU"}}


def test_rates_are_those_published_of_the_chip_or_those_measured() -> None:
    found = probes(product_float32=2e12, copy=1e11, chain=5e5)
    m1 = chips.BY_WORD["m1"]
    assert metal._rates(m1, found, "float32") == cost_model.published(m1)
    here = metal._rates(None, found, "float32")
    assert (here.product, here.bandwidth, here.kernel_seconds) == (2e12, 1e11, 2e-6)
    assert here.fused < here.product
    assert metal._rates(None, found, "bfloat16") is None  # its product was not measured


def decoded(model: str, context: int, median: float, form: str = "auto") -> dict:
    """A row of the record, as a run would have it."""
    about = {"part": "decode", "scale": "100m", "model": model, "form": form, "context": context}
    found = {"median": median, "state_bytes": 3_145_728, "kernels": 100}
    rates = {"float32": cost_model.published(chips.BY_WORD["m4-max"])}
    return about | found | metal._prediction(about, found, rates)


def test_a_decoded_token_is_predicted_from_its_bytes_and_kernels() -> None:
    row = decoded("pam", 2048, median=200.0)
    assert row["seconds"] == 0.005
    parts = cost_model.decode(PRESETS["pam"]["100m"], 2048, kernels=100)
    machine = cost_model.published(chips.BY_WORD["m4-max"])
    assert row["model_seconds"] == pytest.approx(cost_model.seconds(parts, machine))
    assert row["model_kernels"] == 100


def page(rows: list[dict], rates: dict) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    machine = {"cpu": "Apple M4 Max", "memory_bytes": 64 << 30}
    record = {"machine": machine, "gpu_cores": 40, "rows": rows, "MODEL": {"rates": rates}}
    comparison.show(record, console)
    return console.export_text()


def test_tables_set_the_model_beside_the_measurement_and_say_which_is_which() -> None:
    rows = [decoded("pam", n, 500.0) for n in (0, 2048)]
    rows += [decoded("transformer", n, 250.0) for n in (0,)]
    text = page(rows, {})
    assert "Apple M4 Max, 40 GPU cores, 64 GiB" in text
    assert "a decoded token, 100m, float32: ms (MODEL)" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["context", "pam", "transformer", "pam,", "MB", "transformer,", "MB"] in lines
    (pam,) = {f"({comparison._milliseconds(row['model_seconds'])})" for row in rows[:2]}
    assert ["2,048", "2", pam, "-", "3.15", "-"] in lines  # the transformer has no row there
    assert "in brackets: a prediction, not a measurement" in text


def test_a_mac_decodes_with_kernels_and_without(monkeypatch) -> None:
    monkeypatch.setattr(chips, "cores_here", lambda: 40)
    rows = list(metal._decoding(BenchConfig(quick=True), "5m"))
    assert [(row.about["model"], row.job.environment["MLX_PAM_FORM"]) for row in rows[:3]] == [
        ("pam", "auto"), ("pam", "recurrent"), ("transformer", "auto")
    ]  # fmt: skip
    assert len({row.job.process for row in rows}) == 3
    text = page([decoded("pam", 0, 900.0), decoded("pam", 0, 300.0, form="recurrent")], {})
    assert ["context", "pam", "pam", "recurrent", "pam,", "MB"] in [
        line.split()[:6] for line in text.splitlines()
    ]


def test_a_narrow_terminal_cuts_no_figure() -> None:
    about = {"part": "operator", "scale": "100m", "form": "fused", "seq_len": 512}
    about |= {"batch_size": 16, "dtype": "float32", "backward": True}
    rows = [about | {"CHUNK": 8 * n, "seconds": 1.234567, "model_seconds": 9.876543}
            for n in range(1, 9)]  # fmt: skip
    text = page(rows, {})
    assert text.count("1,235 (9,877)") == 8
    assert "…" not in text


def test_what_was_left_out_is_one_line_for_each_reason() -> None:
    about = {"part": "operator", "scale": "5m", "form": "fused", "seq_len": 512}
    rows = [about | {"dtype": d, "skipped": "no Metal"} for d in ("float32", "bfloat16")]
    about = {"part": "decode", "scale": "100m", "model": "pam", "form": "auto"}
    rows += [about | {"skipped": "no memory"}]
    text = page(rows, {})
    assert "left out: 5m fused: no Metal" in text
    assert "left out: 100m pam: no memory" in text
    assert text.count("left out") == 2


def test_a_setting_outside_its_range_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match="threads must be a whole number >= 1, got 0"):
        BenchConfig(threads=0)
