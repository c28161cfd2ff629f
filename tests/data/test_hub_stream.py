"""Data sets of the hub as streams: read over the network, never on the disk, found again."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_hub
import pytest
from new_process import python

from mlx_pam.data import hub_file
from mlx_pam.data.hub_file import PatientFile
from mlx_pam.errors import DataError

STREAM = """
import json, sys
from mlx_pam.data import hub
from mlx_pam.data import stream
from mlx_pam.data.mixture import load_mixture
from mlx_pam.data.streamed import Streaming
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.errors import DataError

stream.CHUNK = 100
hub.PATIENCE = 600.0  # this hub answers, if late on a busy machine

def read(name, count, state=None):
    data = load_mixture(name, gpt2(), Streaming(5, 4))
    batches = data.batches(6, 3, seed=1)
    if state:
        batches.restore(json.loads(json.dumps(state)))
    return data, [batches.next().tolist() for _ in range(count)], batches.state()

for name in sys.argv[1:]:
    try:
        data, rows, state = read(name, 60)
        _, first, between = read(name, 23)
        again, rest, end = read(name + "@" + COMMIT, 37, between)
    except DataError as error:
        print(json.dumps(str(error)))
    else:
        assert (first + rest, end, again.record()) == (rows, state, data.record())
        validation = gpt2().decode(data.parts[0].corpus.validation)
        print(json.dumps([validation.split("<|endoftext|>")[1:], data.record()]))
""".replace("COMMIT", repr(fake_hub.AT))


def streams(home: Path, endpoint: str, *names: str) -> Iterator[Any]:
    """Of data sets that were read at once and in two pieces: what is held out, and the record."""
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf"), "NO_PROXY": "127.0.0.1"}
    settings |= {"MLX_PAM_CACHE": str(home / "tokens"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = python("-c", STREAM, *names, **settings)
    assert done.returncode == 0, done.stderr
    return map(json.loads, done.stdout.splitlines())


def test_streams_are_resumed_by_their_places_and_leave_no_text_on_the_disk(tmp_path: Path) -> None:
    repositories = fake_hub.PAGES, fake_hub.LINES_OF_JSON, fake_hub.BOOKS, "no/such"
    names = [f"hf:{name}" for name in repositories]
    with fake_hub.serve() as endpoint:
        pages, lines, books, none = streams(tmp_path, endpoint, *names)
    assert pages[0] == fake_hub.PAGE[0][:4]
    assert lines[0] == [f"held out {row}" for row in range(4)]
    for name, (_, record) in zip(names, (pages, lines), strict=False):
        assert record["name"] == name
        assert record["commits"] == {name: fake_hub.AT}
    assert "must be .parquet, .jsonl, .ndjson, .json to be streamed, got hf://datasets/" in books
    assert books.endswith("train.txt: leave --stream out")
    assert "must name a public data set" in none
    kept = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert not [file for file in kept if file.endswith((".parquet", ".gz", ".bin", ".arrow"))]


def test_without_network_the_error_says_what_to_place_where(tmp_path: Path) -> None:
    name = f"hf:{fake_hub.PAGES}"
    folder = tmp_path / "tokens" / "text" / "owner--pages"
    (error,) = streams(tmp_path, "http://127.0.0.1:9", name)
    assert error.startswith(f"{name} cannot be fetched (")
    assert f"place its text as train.txt and valid.txt in {folder}" in error
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"text": "by hand"}\n')
    (folder / "valid.txt").write_text("held out")
    ((validation, record),) = streams(tmp_path, "http://127.0.0.1:9", name)
    assert (validation, record["name"]) == (["held out"], name)


class Flaky(io.BytesIO):
    """A file whose reading fails when it is told to."""

    faults = 0
    size = 100

    def read(self, *size: int) -> bytes:
        if Flaky.faults:
            Flaky.faults -= 1
            raise RuntimeError("connection lost\nat length")
        return super().read(*size)


def patient(monkeypatch: pytest.MonkeyPatch, faults: int) -> tuple[io.BufferedReader, list[Flaky]]:
    opened: list[Flaky] = []

    def open_() -> Flaky:
        opened.append(Flaky(bytes(range(100))))
        return opened[-1]

    monkeypatch.setattr(hub_file, "WAITS", (0.001, 0.001, 0.001))
    monkeypatch.setattr(Flaky, "faults", faults)
    return io.BufferedReader(PatientFile("hf://x", open_), 7), opened


def test_reading_goes_on_where_the_network_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, opened = patient(monkeypatch, 0)
    assert file.read(10) == bytes(range(10))
    Flaky.faults = 3
    assert file.read(30) == bytes(range(10, 40))
    assert len(opened) == 4
    assert capsys.readouterr().err.count("connection lost): trying again in") == 3
    Flaky.faults = 3
    assert file.seek(-5, io.SEEK_END) == 95
    assert file.read() == bytes(range(95, 100))
    assert file.seek(0) == 0
    assert file.read() == bytes(range(100))


def test_a_network_that_does_not_come_back_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    file, opened = patient(monkeypatch, 99)
    with pytest.raises(DataError, match=r"hf://x cannot be read \(connection lost\): .* --resume"):
        file.read(1)
    assert len(opened) == 4


def test_a_file_that_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_file, "WAITS", (999.0,))

    def absent() -> None:
        raise FileNotFoundError("no such file")

    with pytest.raises(DataError, match="no such file"):
        io.BufferedReader(PatientFile("hf://x", absent)).read(1)
