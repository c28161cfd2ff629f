"""Data sets of the hub: fetched at a commit, used again offline, else an error that helps."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import fake_hub
import pytest
from new_process import python

from mlx_pam.data import catalogue, hub, wikitext
from mlx_pam.data.corpus import load_corpus
from mlx_pam.data.gpt2 import gpt2

NOBODY = "http://127.0.0.1:9"
ALPHA, BETA = "\n = Al = \n\n of a . \n = = Part = = \n\n", " = Be = \n\n of b . \n"

LOAD = """
import json, sys
from mlx_pam.data import hub
from mlx_pam.data.corpus import load_corpus
from mlx_pam.data.gpt2 import gpt2
from mlx_pam.errors import DataError
hub.PATIENCE = 600.0  # this hub answers, if late on a busy machine
for name in sys.argv[1:]:
    try:
        corpus = load_corpus(name, gpt2())
    except DataError as error:
        print(json.dumps(str(error)))
    else:
        texts = [gpt2().decode(corpus.split(split)) for split in corpus.bytes]
        print(json.dumps([corpus.fingerprint, corpus.description, *texts]))
"""


def load(home: Path, endpoint: str, *names: str) -> list[list[str] | str]:
    """Fingerprint, description and texts of corpora, or errors, as a new process finds them."""
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf"), "NO_PROXY": "127.0.0.1"}
    settings |= {"MLX_PAM_CACHE": str(home / "tokens"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = python("-c", LOAD, *names, **settings)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_data_set_is_fetched_once_and_then_needs_no_network(tmp_path: Path) -> None:
    two = f"hf:{wikitext.REPOSITORY}:wikitext-2-raw-v1"
    with fake_hub.serve() as endpoint:
        first = load(tmp_path, endpoint, "wikitext-103", two, "wikitext-2", "hf:no/such")
    train = "<|endoftext|>".join([ALPHA, BETA + "\n"] * 3).replace(
        "<|endoftext|>\n", "<|endoftext|>"
    )
    for _, description, *texts in first[:3]:
        assert texts == [train.removesuffix("\n"), f"{ALPHA}<|endoftext|>{BETA}"]
        assert wikitext.REVISION[:8] in description
    assert first[0][0] != first[1][0] == first[2][0], "the fingerprint is that of the text"
    assert "hf:no/such must name a public data set" in first[3]

    assert load(tmp_path, NOBODY, "wikitext-103", two) == first[:2]
    (tmp_path / "tokens").rename(tmp_path / "tokens-gone")
    assert load(tmp_path, NOBODY, "wikitext-103", two) == first[:2]


def test_without_network_the_error_says_what_to_place_where(tmp_path: Path) -> None:
    names = "wikitext-103", "hf:owner/name:config"
    folders = [tmp_path / "tokens" / "text" / name for name in (names[0], "owner--name--config")]
    for name, error, folder in zip(names, load(tmp_path, NOBODY, *names), folders, strict=True):
        assert error.startswith(f"{name} cannot be fetched (")
        assert f"place its text as train.txt and valid.txt in {folder}" in error
        folder.mkdir(parents=True)
        (folder / "train.txt").write_text(ALPHA + BETA)
        (folder / "valid.txt").write_text(BETA)
    assert [texts for _, _, *texts in load(tmp_path, NOBODY, *names)] == [
        [f"{ALPHA}<|endoftext|>{BETA}", BETA],  # articles
        [ALPHA + BETA, BETA],
    ]


def test_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PATIENCE", 0.05)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        hub._in_time(threading.Event().wait)


def test_data_set_without_the_package_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(hub.DataError, match="pip install datasets"):
        load_corpus("wikitext-2", gpt2(), tmp_path)


def rows(**columns: list[str]) -> object:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict(columns)


def of(found: object, **chosen: str) -> dict[str, list[str]]:
    """The documents that a data set's splits give."""
    text = hub.HubText("hf:a/b", "a/b", None, None, "", **chosen)
    return {
        split: ["".join(document) for document in part.documents]
        for split, part in text._splits(text._choose(found)).items()
    }


def test_column_and_splits_are_chosen_by_name() -> None:
    """As of chats and web pages: no split train, and more than one column of text."""
    found = {
        "train_sft": rows(content=["a"], url=["x"]),
        "test_sft": rows(content=["b"], url=["y"]),
        "validation": rows(content=["c"], url=["z"]),
    }
    chosen = {"column": "content", "train": "train_sft"}
    assert of(found, **chosen) == {"train": ["a"], "validation": ["c"]}
    assert of(found, **chosen, validation="test_sft") == {"train": ["a"], "validation": ["b"]}
    several = rows(content=["a", "b"], url=["x", "y"])
    assert of({"validation": several}, column="url", train="validation") == {
        "train": ["x"], "validation": ["y"],
    }  # fmt: skip
    for wrong, said in (
        ({}, r"must have a split train, got train_sft, .*\?split=NAME"),
        ({"train": "train_gen"}, "must have a split train_gen, got train_sft, test_sft"),
        ({"train": "train_sft"}, r"called text, .* got content \(string\), url \(string\)"),
        ({"train": "train_sft", "column": "body"}, "'body', got none; .*: 'content', 'url'"),
        (chosen | {"validation": "dev"}, "must have a split dev"),
    ):
        with pytest.raises(hub.DataError, match=said):
            of(found, **wrong)


def test_name_of_a_data_set_holds_what_is_chosen_of_it(tmp_path: Path) -> None:
    name = "hf:owner/name@main:config?column=my%20text&split=train_sft&validation=test_sft"
    text = catalogue._hub_text(name, tmp_path)
    assert text.name == name.replace("@main", "")
    assert (text.repository, text.config, text.revision) == ("owner/name", "config", "main")
    assert (text.column, text.train, text.validation) == ("my text", "train_sft", "test_sft")
    assert str(tmp_path / "text" / "owner--name--config,") in text.otherwise + ","
    plain = catalogue._hub_text("hf:owner/name", tmp_path)
    identities = [each.identify("0") for each in (plain, text)]
    assert identities[0] == {"repository": "owner/name", "config": None, "commit": "0"}
    assert identities[1].items() >= {"column": "my text", "split": "train_sft"}.items()
    for wrong in ("?colum=a", "?column=", "?column", "?column=a&column=b", "?split=a&b"):
        with pytest.raises(hub.DataError, match="must be column=NAME, split=NAME, validation=NAME"):
            catalogue._hub_text(f"hf:owner/name{wrong}", tmp_path)


def test_rows_are_documents_and_some_are_held_out_if_no_split_is() -> None:
    texts = [f"row {number}" for number in range(40)]
    splits = of({"train": rows(title=["t"] * 40, text=texts)})
    assert splits["validation"] == ["row 19", "row 39"]
    assert splits["train"] == [text for text in texts if text not in splits["validation"]]


def test_splits_are_found_by_their_usual_names() -> None:
    splits = of(
        {"train": rows(content=["a\r\n", None]), "dev": rows(content=["b"]), "more": rows(x=["c"])}
    )
    assert splits == {"train": ["a\n", ""], "validation": ["b"]}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"test": {"text": ["a"]}}, "split train, got test"),
        ({"train": {"a": ["a"], "b": ["b"]}}, r"called text, .* got a \(string\), b \(string\)"),
        ({"train": {"number": [1]}}, r"beside numbers only, got number \(int64\)"),
    ],
)
def test_data_set_that_is_no_text_is_an_error(found: dict, said: str) -> None:
    with pytest.raises(hub.DataError, match=said):
        of({split: rows(**columns) for split, columns in found.items()})
