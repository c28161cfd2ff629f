"""The texts of associative recall ask for what they have shown, and answers are counted rightly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlx_pam.benchmarks import recall, rows
from mlx_pam.parameters import parameter_count

PAIRS, QUESTIONS = 8, 12


@pytest.fixture
def texts() -> np.ndarray:
    return recall.texts(np.random.default_rng(0), 400, PAIRS, QUESTIONS)


def test_every_question_is_answered_with_the_value_behind_its_key(texts):
    assert texts.shape == (400, 2 * (PAIRS + QUESTIONS))
    for text in texts:
        pairs = text.reshape(-1, 2)
        shown = dict(pairs[:PAIRS].tolist())
        assert len(shown) == PAIRS  # no key twice
        assert [shown[key] for key, _ in pairs[PAIRS:].tolist()] == pairs[PAIRS:, 1].tolist()
        assert max(shown) < recall.KEYS <= min(shown.values())
        assert max(shown.values()) < recall.KEYS + recall.VALUES


def test_chance_is_that_of_the_value_shown_most_often(texts):
    assert 1 / PAIRS < recall.chance(texts, PAIRS) < 0.25
    alike = texts.copy()
    alike[:, 1::2] = recall.KEYS
    assert recall.chance(alike, PAIRS) == 1.0


def test_an_answer_counts_if_it_comes_before_all_other_tokens(texts):
    class Decoder:
        """Right about the first quarter of the texts."""

        def prefill(self, prompts):
            assert [len(prompt) for prompt in prompts] == [texts.shape[1] - 1] * len(texts)
            logits = np.zeros((len(texts), recall.KEYS + recall.VALUES))
            right = np.arange(len(texts)) < len(texts) // 4
            logits[np.arange(len(texts)), np.where(right, texts[:, -1], 0)] = 1
            return logits

    assert recall.answered(Decoder(), texts) == 0.25


def test_models_have_one_size_but_for_what_the_variant_adds():
    counts = {name: parameter_count(config) for name, config in recall.MODELS.items()}
    plain = [counts[name] for name in ("pam", "sam", "transformer")]
    assert max(plain) < 1.01 * min(plain)
    assert max(counts.values()) < 1.03 * min(counts.values())


def test_a_model_learns_and_its_row_is_kept(backend, tmp_path, capsys):
    out = tmp_path / "recall.jsonl"
    words = "--models pam --rates 3e-3 --seeds 0 --steps 3 --every 2 --batch 4 --tests 8"
    assert recall.main([*words.split(), "--backend", backend.name, "--out", str(out)]) == 0
    (row,) = rows.read(out)
    assert [point["step"] for point in row["curve"]] == [2, 3]
    assert row["tokens"] == 3 * 4 * (2 * (PAIRS + QUESTIONS) - 1)
    recall.main(["--table", "--out", str(out)])
    assert "| pam | 60,172 |" in capsys.readouterr().out


def row(lr: float, seed: int, accuracy: float) -> recall.Row:
    return {"model": "pam", "lr": lr, "seed": seed, "parameters": 5000, "accuracy": accuracy}


MEASURED = [row(0.2, 1, 0.8), row(0.1, 1, 0.1), row(0.2, 0, 0.6), row(0.1, 0, 1), row(0.4, 0, 0.9)]


def test_the_table_has_every_accuracy():
    assert recall.table(MEASURED) == [
        "| model | parameters | rate 0.1 | rate 0.2 | rate 0.4 |",
        "| --- | --- | --- | --- | --- |",
        "| pam | 5,000 | 1.000, 0.100 | 0.600, 0.800 | 0.900 |",
    ]


def test_the_best_rate_is_that_of_all_seeds():
    rates = recall.by_rate(MEASURED, "pam")
    assert [r["accuracy"] for r in recall.best_rate(rates)] == [0.6, 0.8]


def test_the_page_has_the_table_of_the_rows_that_are_kept():
    lines = (Path(__file__).parents[2] / "docs" / "study.md").read_text("utf-8").splitlines()
    assert [line for line in recall.table(rows.read(recall.RESULTS)) if line not in lines] == []
