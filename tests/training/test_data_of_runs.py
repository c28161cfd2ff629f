"""Runs on mixtures and on streams: told in the plan, validated by part, resumed to the bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from new_process import environment
from small_run import WORDS, assert_same_run, run, small

from mlx_pam import checkpoint
from mlx_pam.config import PAMConfig, TrainConfig
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.errors import ConfigError
from mlx_pam.training.metrics import read_log

KILLED = """
import os, signal, sys
from pathlib import Path
import small_run
from mlx_pam.training.trainer import Trainer

save = Trainer.save

def killed(self):
    path = save(self)
    if self.step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return path

Trainer.save = killed
small_run.run(Path(sys.argv[1]), Path(sys.argv[2]), **eval(sys.argv[3]))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_PAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("mlx_pam.data.stream.CHUNK", 200)


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A folder of documents in JSON lines."""
    folder = tmp_path / "pages"
    folder.mkdir()
    random = np.random.default_rng(3)
    for number in range(3):
        texts = (" ".join(random.choice(WORDS, random.integers(3, 40))) for _ in range(40))
        lines = (json.dumps({"text": text}) for text in texts)
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    return folder


def test_mixture_is_validated_by_part_and_resumed_as_if_it_never_stopped(
    backend, corpus, pages, tmp_path, capsys
):
    data = f"{corpus}*1,{pages}*3"
    settings = {"data": data, "eval_every": 10, "backend": backend.name}
    run(corpus, tmp_path / "whole", **settings)
    opening = capsys.readouterr().out
    assert "data     2 corpora take turns\n         25% corpus.txt: " in opening
    assert "\n         75% pages: " in opening
    run(corpus, tmp_path / "parts", stop_after=7, **settings)
    result = run(corpus, tmp_path / "parts", resume=True, **settings)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    *_, last = read_log(tmp_path / "whole", "evaluation")
    assert set(last["parts"]) == {"corpus.txt", "pages"}
    mean = 0.25 * last["parts"]["corpus.txt"] + 0.75 * last["parts"]["pages"]
    assert last["loss"] == result.validation_loss == pytest.approx(mean, rel=1e-12)
    with pytest.raises(ConfigError, match=r"data must be '1 corpus\.txt \+ 3 pages' to resume"):
        run(corpus, tmp_path / "parts", **settings | {"data": f"{corpus}*1,{pages}*2"}, resume=True)


def test_stream_that_is_killed_goes_on_as_if_it_never_was(backend, corpus, pages, tmp_path):
    settings = {"data": str(pages), "stream": True, "stream_buffer": 7, "stream_validation": 9}
    settings |= {"steps": 12, "save_every": 3, "eval_every": 6, "backend": backend.name}
    run(corpus, tmp_path / "whole", **settings)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, corpus, tmp_path / "killed", repr(settings)],
        env=environment(TORCHDYNAMO_DISABLE="1"),
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run(corpus, tmp_path / "killed", resume=True, **settings)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert not (tmp_path / "cache" / "tokens").exists()
    for name, value in (("stream_buffer", 8), ("stream_validation", 8)):
        with pytest.raises(
            ConfigError, match=f"{name} must be {settings[name]} to resume .* {value}"
        ):
            run(corpus, tmp_path / "whole", **settings | {name: value}, resume=True)
    with pytest.raises(ConfigError, match="stream must be True to resume"):
        run(corpus, tmp_path / "whole", **settings | {"stream": False}, resume=True)
    with (pages / "1.jsonl").open("a") as file:
        file.write('\n{"text": "one more"}')
    said = r"the text of the data changed since .* was saved: pages \(changed: 1\.jsonl\): restore"
    with pytest.raises(ConfigError, match=said):
        run(corpus, tmp_path / "whole", resume=True, **settings)


def test_stream_needs_its_steps(corpus):
    with pytest.raises(ConfigError, match=r"steps must be given with stream, .* got None"):
        TrainConfig(stream=True, data=str(corpus))


def test_run_that_resets_at_documents_keeps_to_it(corpus, pages, tmp_path):
    tiny = PAMConfig(dim=8, num_layers=2, num_heads=2, head_dim=4, reset_token=gpt2().end_of_text)
    settings = {"data": str(pages), "steps": 4}
    plain = run(corpus, tmp_path / "plain", **settings)
    result = run(corpus, tmp_path / "resets", tiny, **settings)
    assert checkpoint.load(result.out).config.reset_token == gpt2().end_of_text
    losses = [[r["loss"] for r in read_log(r.out, "step")] for r in (plain, result)]
    assert losses[0] != losses[1]
    with pytest.raises(ConfigError, match=r"reset_token must be 50256 to resume .*, got None"):
        run(corpus, tmp_path / "resets", **settings, resume=True)
    config = small(corpus, tmp_path, reset_at_documents=True).model_config()
    assert config.reset_token == gpt2().end_of_text
