"""H13: in a new home without a network what is local works; the rest says what to place where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from new_process import TESTS, Done, environment
from small_run import write_corpus
from tiny_models import random_checkpoint

from mlx_pam.data.hub import PATIENCE

TRAIN = (f"{TESTS}/small_command.py", "train", "--seq-len", "8", "--batch-size", "2")
TRAIN += ("--steps", "1", "--eval-every", "0", "--sample-every", "0", "--backend", "mlx")

NETWORKS = {
    "refuses": "raise OSError('the network is down')",
    "is silent": "import time; time.sleep(86400)",
}
# connections and names fail for whatever asks; sockets of the machine itself need no network
WITHOUT_NETWORK = """
import socket

def fail(*_, **__):
    with open({attempts!r}, "a") as attempts:
        attempts.write(".")
    {fails}

class Socket(socket.socket):
    def connect(self, address):
        if self.family != socket.AF_UNIX:
            fail()
        super().connect(address)

    connect_ex = connect

socket.socket, socket.getaddrinfo, socket.create_connection = Socket, fail, fail
"""
NOWHERE = "http://127.0.0.1:9"  # for what opens connections on its own


@pytest.fixture(params=NETWORKS)
def home(request, tmp_path) -> Path:
    """A home folder that is new, on a machine whose network is down."""
    (tmp_path / "home").mkdir()
    (tmp_path / "site").mkdir()
    attempts = str(tmp_path / "attempts")
    code = WITHOUT_NETWORK.format(fails=NETWORKS[request.param], attempts=attempts)
    (tmp_path / "site" / "sitecustomize.py").write_text(code)
    return tmp_path / "home"


def offline(home: Path, *words: str) -> Done[str]:
    """Run Python in that home, with nothing in its environment that points elsewhere."""
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY"), NOWHERE)
    variables = environment(HOME=str(home), HF_ENDPOINT=NOWHERE, **proxies)
    for name in ("MLX_PAM_CACHE", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN"):
        variables.pop(name, None)
    variables["PYTHONPATH"] = f"{home.with_name('site')}:{variables['PYTHONPATH']}"
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True)


def test_a_local_checkpoint_speaks(home):
    folder = random_checkpoint(home / "model")
    words = ("generate", "--checkpoint", str(folder), "--prompt", "The", "--max-tokens", "3")
    done = offline(home, "-m", "mlx_pam", *words, "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The")
    assert "3 tokens" in done.stderr


def test_a_local_file_is_trained_on(home):
    done = offline(home, *TRAIN, "--data", write_corpus(home).name, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert (home / "run" / "step-00000001" / "complete.json").exists()


def test_a_text_of_the_hub_is_an_error_with_a_remedy_that_works(home):
    done = offline(home, *TRAIN, "--data", "wikitext-103")
    assert len(home.with_name("attempts").read_text()) < 5  # hardly a retry, and
    assert PATIENCE < 10  # seconds at most for the answer
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    place = home / ".cache" / "mlx_pam" / "text" / "wikitext-103"
    assert line.startswith("error: wikitext-103 cannot be fetched (")
    assert f"place its text as train.txt and valid.txt in {place}" in line
    assert list((home / "runs").rglob("*")) == []  # nothing was trained, on whatever
    assert list(home.rglob("*.bin")) == []

    place.mkdir(parents=True)
    text = write_corpus(home).read_text()
    (place / "train.txt").write_text(text)
    (place / "valid.txt").write_text(text[:1000])
    done = offline(home, *TRAIN, "--data", "wikitext-103")
    assert done.returncode == 0, done.stderr
    assert str(place) in done.stdout
