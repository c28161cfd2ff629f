"""H16: empty and blank prompts, no tokens, one token, and a prompt from stdin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from new_process import Done, mlx_pam
from tiny_models import random_checkpoint

from mlx_pam import load
from mlx_pam.cli import main

PROMPTS = ["", " ", "\n"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("h16") / "model")


def run(folder: Path, *words: str | bytes, stdin: bytes = b"") -> Done[str]:
    return mlx_pam("generate", "--checkpoint", folder, *words, stdin=stdin)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_blank_prompts_generate(folder, prompt, capsys):
    words = ["generate", "--checkpoint", str(folder), "--prompt", prompt, "--json"]
    assert main([*words, "--max-tokens", "5", "--seed", "1"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["prompt"] == prompt
    assert len(record["tokens"]) == 5
    assert record["prompt_tokens"] == len(prompt)


def test_an_empty_prompt_starts_from_the_end_of_text_token(folder, capsys):
    words = ["generate", "--checkpoint", str(folder), "--prompt", "", "--json"]
    assert main([*words, "--max-tokens", "1", "--temperature", "0"]) == 0
    model = load(folder)
    logits = model.decoder().prefill([[model.tokenizer.end_of_text]])[0]
    assert json.loads(capsys.readouterr().out)["tokens"] == [int(logits.argmax())]


@pytest.mark.parametrize("prompt", [*PROMPTS, "Hello"])
def test_no_tokens_prints_the_prompt_alone(folder, prompt, capsys):
    words = ["generate", "--checkpoint", str(folder), "--prompt", prompt, "--max-tokens", "0"]
    assert main(words) == 0
    assert capsys.readouterr().out == prompt + "\n"
    assert main([*words, "--no-echo"]) == 0
    assert capsys.readouterr().out == "\n"


def test_one_token_is_exactly_one(folder, capsys):
    words = ["generate", "--checkpoint", str(folder), "--prompt", "Hello", "--json"]
    assert main([*words, "--max-tokens", "1", "--seed", "1"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["tokens"]) == 1
    assert record["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        (b"Hello\n", "Hello"),
        (b"Hello\r\n", "Hello"),
        (b"Hello\n\n", "Hello\n"),
        (b"Hello", "Hello"),
        (b"", ""),
        ("naïve 🦜\n".encode(), "naïve 🦜"),
    ],
)
def test_a_prompt_from_stdin_loses_one_newline_at_its_end(folder, given, prompt):
    done = run(folder, "--json", "--max-tokens", "2", stdin=given)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prompt"] == prompt


def test_a_prompt_that_is_not_text_is_a_clean_error(folder):
    for done in (
        run(folder, "--prompt", "-", stdin=b"ab\xffcd"),
        run(folder, "--prompt", b"ab\xffcd"),
    ):
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert "error: the prompt must be UTF-8, got byte 0xff at offset 2" in done.stderr
