from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlx_pam import checkpoint, durable
from mlx_pam.config import PAMConfig, SAMConfig
from mlx_pam.errors import CheckpointError
from mlx_pam.parameters import initial_weights

CONFIG = PAMConfig(dim=6, num_layers=2, num_heads=2, head_dim=4, vocab_size=11)
TOKENIZER = {"tokenizer.json": b"{\r\n}", "tokenizer_config.json": b"\xff"}
TRAINING = {"step": 3, "tokens": 96, "elapsed": 1.5}


def optimizer_of(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    moments = {
        f"{m}.{k}": np.full_like(v, 0.1) for m in checkpoint.MOMENTS for k, v in weights.items()
    }
    return moments | {"step": np.array(3, np.int64)}


def save(run: Path, step: int = 3) -> Path:
    weights = initial_weights(CONFIG, seed=step)
    folder = checkpoint.step_folder(run, step)
    training = TRAINING | {"step": step}
    return checkpoint.save(folder, CONFIG, weights, optimizer_of(weights), training, TOKENIZER)


def test_everything_comes_back_to_the_bit(tmp_path):
    path = save(tmp_path)
    found = checkpoint.load(path, optimizer=True)
    weights = initial_weights(CONFIG, seed=3)
    assert found.config == CONFIG
    assert found.training == TRAINING
    assert found.tokenizer == TOKENIZER
    for saved, loaded in ((weights, found.weights), (optimizer_of(weights), found.optimizer)):
        assert set(saved) == set(loaded)
        for name, array in saved.items():
            assert loaded[name].dtype == array.dtype
            np.testing.assert_array_equal(loaded[name], array, strict=True)


def test_a_sliced_view_is_saved_as_it_is_seen(tmp_path):
    weights = initial_weights(CONFIG)
    table = weights["embedding.weight"]
    weights["embedding.weight"] = np.asfortranarray(table)
    path = checkpoint.save(tmp_path / "model", CONFIG, weights)
    np.testing.assert_array_equal(checkpoint.load(path).weights["embedding.weight"], table)


def test_a_run_folder_stands_for_its_newest_complete_checkpoint(tmp_path):
    for step in (9, 10, 100_000_000):
        save(tmp_path, step)
    assert checkpoint.find(tmp_path) == tmp_path / "step-100000000"
    (tmp_path / "step-100000000" / checkpoint.COMPLETE).unlink()
    (tmp_path / "step-00000010" / checkpoint.OPTIMIZER).write_bytes(b"cut")
    assert checkpoint.find(tmp_path) == tmp_path / "step-00000009"
    assert checkpoint.load(tmp_path).training["step"] == 9


def test_an_empty_run_folder_has_no_checkpoint(tmp_path):
    assert checkpoint.find(tmp_path) is None
    assert checkpoint.find(tmp_path / "absent") is None
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        checkpoint.load(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint.load(tmp_path / "absent")


@pytest.mark.parametrize(
    "moment", ["mkdir", "write_arrays", "write_bytes", "mark", "sync", "rename"]
)
def test_a_crash_while_saving_leaves_the_older_checkpoint_and_no_rubbish(
    tmp_path, monkeypatch, moment
):
    save(tmp_path, 1)

    def crash(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path if hasattr(Path, moment) else durable, moment, crash)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2)
    assert checkpoint.find(tmp_path) == tmp_path / "step-00000001"
    save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def test_an_incomplete_checkpoint_is_replaced_and_a_complete_one_never(tmp_path):
    path = save(tmp_path)
    with pytest.raises(CheckpointError, match="already holds a checkpoint"):
        save(tmp_path)
    (path / checkpoint.COMPLETE).unlink()
    save(tmp_path)
    assert checkpoint.is_complete(path)


def test_a_folder_of_somebody_else_is_never_replaced(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="cannot write"):
        checkpoint.save(folder, CONFIG, initial_weights(CONFIG))
    assert (folder / "thesis.txt").exists()


def test_prune_keeps_the_newest_and_touches_nothing_else(tmp_path):
    for step in range(1, 6):
        save(tmp_path, step)
    (tmp_path / "step-00000004" / checkpoint.COMPLETE).unlink()
    (tmp_path / "step-x").mkdir()
    (tmp_path / ".step-00000009.saving-notes").mkdir()
    checkpoint.prune(tmp_path, keep=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        ".step-00000009.saving-notes", "step-00000003", "step-00000004", "step-00000005", "step-x",
    ]  # fmt: skip


def test_a_checkpoint_that_was_moved_and_linked_is_pruned_by_its_link_alone(tmp_path):
    run, disk = tmp_path / "run", tmp_path / "disk"
    disk.mkdir()
    for step in (1, 2, 3, 4):
        save(run, step)
    for step in (1, 2):
        folder = checkpoint.step_folder(run, step)
        folder.rename(disk / folder.name)
        folder.symlink_to(disk / folder.name)
    checkpoint.prune(run, keep=1)
    assert [path.name for path in run.iterdir()] == ["step-00000004"]
    assert sorted(path.name for path in disk.iterdir()) == ["step-00000001", "step-00000002"]


def test_an_exported_model_needs_configuration_and_weights_only(tmp_path):
    path = save(tmp_path)
    exported = tmp_path / "exported"
    exported.mkdir()
    for name in (checkpoint.CONFIG, checkpoint.WEIGHTS):
        shutil.copy(path / name, exported)
    found = checkpoint.load(exported)
    assert (found.optimizer, found.training) == (None, None)
    assert found.config == CONFIG


@pytest.fixture(params=["as saved", "exported"])
def folder(request, tmp_path) -> Path:
    """A checkpoint to be damaged; an exported one has no completeness mark to betray the damage."""
    path = save(tmp_path)
    if request.param == "exported":
        (path / checkpoint.COMPLETE).unlink()
    return path


def write_tensors(path: Path, **changes: np.ndarray | None) -> None:
    tensors = load_file(path) | changes
    save_file({name: array for name, array in tensors.items() if array is not None}, path)


def test_a_configuration_that_does_not_fit_names_its_file(folder):
    (folder / checkpoint.COMPLETE).unlink(missing_ok=True)
    record = CONFIG.to_dict()
    for change in (
        {"dim": 0},
        {"width": 5},
        {"model_type": "rnn"},
        {"format_version": 99},
        {"dim": "6"},
    ):
        (folder / checkpoint.CONFIG).write_text(json.dumps(record | change))
        with pytest.raises(CheckpointError, match=r"config\.json"):
            checkpoint.load(folder)
    (folder / checkpoint.CONFIG).write_text("{}[")
    with pytest.raises(CheckpointError, match=r"config\.json is damaged"):
        checkpoint.load(folder)


def test_weights_of_another_model_are_refused(folder):
    other = SAMConfig(dim=6, num_layers=2, num_heads=2, head_dim=4, vocab_size=11)
    (folder / checkpoint.COMPLETE).unlink(missing_ok=True)
    (folder / checkpoint.CONFIG).write_text(json.dumps(other.to_dict()))
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: .* do not fit: embedding\.weight must be"
    ):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"head.weight": None}, "lacks head.weight"),
        ({"rotary.angles": np.zeros(3, np.float32)}, "has unknown rotary.angles"),
        ({"head.weight": np.zeros((2, 6, 7), np.float32)}, r"head.weight must be F32 \[2, 6, 6\]"),
        (
            {"head.weight": np.zeros((2, 6, 6), np.float64)},
            r"1 of \d+ tensors .*got F64 \[2, 6, 6\]: convert .* save again",
        ),
    ],
)
def test_tensors_must_be_exactly_those_of_the_configuration(folder, change, complaint):
    (folder / checkpoint.COMPLETE).unlink(missing_ok=True)
    write_tensors(folder / checkpoint.WEIGHTS, **change)
    with pytest.raises(CheckpointError, match=complaint):
        checkpoint.load(folder)


def test_tensors_that_do_not_fit_are_counted_and_the_first_of_them_named(folder):
    (folder / checkpoint.COMPLETE).unlink(missing_ok=True)
    tensors = load_file(folder / checkpoint.WEIGHTS)
    doubles = {name: array.astype(np.float64) for name, array in tensors.items()}
    write_tensors(folder / checkpoint.WEIGHTS, **doubles)
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(folder)
    count = len(tensors)
    assert f"{count} of {count} tensors do not fit: " in str(error.value)
    assert str(error.value).count("got F64") == 3
    assert f"; and {count - 3} more: convert" in str(error.value)


@pytest.mark.parametrize("half", ["F16", "BF16"])
def test_weights_in_half_precision_are_widened_to_the_bit(folder, half):
    """As other tools save them; in one file with float32."""
    (folder / checkpoint.COMPLETE).unlink(missing_ok=True)
    path = folder / checkpoint.WEIGHTS
    tensors, expected, header, body = load_file(path), {}, {}, b""
    for number, (name, array) in enumerate(tensors.items()):
        expected[name], raw, code = array, array.tobytes(), "F32"
        if number % 2 == 0 and half == "F16":
            expected[name] = array.astype(np.float16).astype(np.float32)
            raw, code = array.astype(np.float16).tobytes(), half
        elif number % 2 == 0:
            bits = array.view(np.uint32) & np.uint32(0xFFFF0000)
            expected[name] = bits.view(np.float32)
            raw, code = (bits >> 16).astype("<u2").tobytes(), half
        offsets = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": offsets}
        body += raw
    written = json.dumps(header).encode()
    path.write_bytes(len(written).to_bytes(8, "little") + written + body)
    found = checkpoint.load(folder).weights
    for name, array in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_a_checkpoint_of_a_newer_version_says_to_upgrade(folder):
    (folder / checkpoint.COMPLETE).unlink(missing_ok=True)
    record = CONFIG.to_dict() | {"format_version": 2, "model_type": "of the future"}
    (folder / checkpoint.CONFIG).write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"config\.json: .*newer version of mlx_pam; upgrade"):
        checkpoint.load(folder)


def test_a_changed_byte_is_noticed(tmp_path):
    path = save(tmp_path)
    weights = bytearray((path / checkpoint.WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (path / checkpoint.WEIGHTS).write_bytes(weights)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        checkpoint.load(path)


def test_a_damaged_optimizer_stops_a_resume_and_not_a_reader_of_the_weights(folder):
    (folder / checkpoint.COMPLETE).unlink(missing_ok=True)
    write_tensors(folder / checkpoint.OPTIMIZER, step=None)
    assert checkpoint.load(folder).config == CONFIG
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors lacks step"):
        checkpoint.load(folder, optimizer=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["weights", "optimizer"])
def test_numbers_that_are_not_finite_are_neither_saved_nor_loaded(tmp_path, name, bad):
    path = save(tmp_path)
    found = checkpoint.load(path, optimizer=True)
    file, key = {
        "weights": (checkpoint.WEIGHTS, "head.weight"),
        "optimizer": (checkpoint.OPTIMIZER, "exp_avg.head.weight"),
    }[name]
    arrays = getattr(found, name)
    arrays[key][0, 1, 2] = bad
    counts = "1 NaN and 0 infinite" if np.isnan(bad) else "0 NaN and 1 infinite"
    complaint = rf"{file}: every number must be finite, got {counts} of 72 in {key}"
    with pytest.raises(CheckpointError, match=complaint):
        checkpoint.save(tmp_path / "new", CONFIG, found.weights, found.optimizer)
    assert not (tmp_path / "new").exists()
    save_file(arrays, path / file)
    (path / checkpoint.COMPLETE).unlink()
    with pytest.raises(CheckpointError, match=complaint):
        checkpoint.load(path, optimizer=True)
    if name == "optimizer":
        assert checkpoint.load(path).config == CONFIG  # who only reads the weights may have them


def test_a_checkpoint_that_is_replaced_while_it_is_looked_at_gives_way_to_the_next(
    tmp_path, monkeypatch
):
    for step in (5, 6):
        save(tmp_path, step)
    checkpoint.record_best(tmp_path, checkpoint.Validation(5, 3.0))
    is_complete = checkpoint.is_complete

    def after_the_run_went_on(folder):
        if folder.name == "step-00000006" and folder.exists():
            save(tmp_path, 7)
            shutil.rmtree(folder)
        return is_complete(folder)

    monkeypatch.setattr(checkpoint, "is_complete", after_the_run_went_on)
    assert checkpoint.find(tmp_path) == tmp_path / "step-00000007"


def test_the_best_checkpoint_is_kept_and_has_a_name(tmp_path):
    for step in range(1, 7):
        save(tmp_path, step)
        if step == 2:
            checkpoint.record_best(tmp_path, checkpoint.Validation(step, 3.25))
        checkpoint.prune(tmp_path, keep=2)
    assert [path.name for path in checkpoint.complete_checkpoints(tmp_path)] == [
        "step-00000002", "step-00000005", "step-00000006",
    ]  # fmt: skip
    assert checkpoint.best(tmp_path) == checkpoint.Validation(2, 3.25)
    assert checkpoint.load(tmp_path / "best").training["step"] == 2
    assert checkpoint.load(tmp_path).training["step"] == 6
    checkpoint.record_best(tmp_path, checkpoint.Validation(6, 3.0))
    checkpoint.prune(tmp_path, keep=1)
    assert checkpoint.complete_checkpoints(tmp_path) == [tmp_path / "step-00000006"]


@pytest.mark.parametrize("record", [None, "", "[]", '{"step": 9, "loss": 1.0}', '{"step": "x"}'])
def test_a_best_checkpoint_that_is_not_there_is_said(tmp_path, record):
    save(tmp_path)
    if record is not None:
        (tmp_path / checkpoint.BEST).write_text(record)
    assert checkpoint.best(tmp_path) is None
    with pytest.raises(CheckpointError, match="has no best checkpoint"):
        checkpoint.load(tmp_path / "best")
    checkpoint.prune(tmp_path, keep=1)  # is no obstacle to a run


@pytest.mark.parametrize("moment", ["require_mark", "read_json", "read_arrays", "read_bytes"])
@pytest.mark.parametrize("name", ["", "best"])
def test_a_reader_whose_checkpoint_is_removed_takes_the_next(tmp_path, monkeypatch, moment, name):
    """As a run at work would, which saves another one just before a part of it is read."""
    save(tmp_path, 1)
    checkpoint.record_best(tmp_path, checkpoint.Validation(1, 3.0))
    read = getattr(durable, moment)

    def overtaken(path, *arguments):
        if path.parent.name == "step-00000001":
            save(tmp_path, 2)
            checkpoint.record_best(tmp_path, checkpoint.Validation(2, 2.0))
            checkpoint.prune(tmp_path, keep=1)
        return read(path, *arguments)

    monkeypatch.setattr(durable, moment, overtaken)
    assert checkpoint.load(tmp_path / name, optimizer=True).training["step"] == 2


def test_a_reader_of_one_checkpoint_that_is_removed_is_told(tmp_path, monkeypatch):
    path = save(tmp_path, 1)
    monkeypatch.setattr(durable, "require_mark", lambda *_: shutil.rmtree(path, True))
    with pytest.raises(CheckpointError, match="step-00000001 does not exist"):
        checkpoint.load(path)
