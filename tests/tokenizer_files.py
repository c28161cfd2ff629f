"""Small tokenizers of the common kinds, each a `tokenizer.json`; imported by tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TEXT = [
    "The river runs over the green stone, and under the old cloud.",
    "It's 1234 = four; naïve 漢字 漢字 🙂 and so on...",
    "river stone cloud wind runs falls over under green old " * 4,
]
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(pattern: str | None = None) -> dict[str, Any]:
    """After GPT-2's manner, or with a pattern of its own."""
    tokenizers = pytest.importorskip("tokenizers")
    pre, decoders, models = tokenizers.pre_tokenizers, tokenizers.decoders, tokenizers.models
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    if pattern:
        split = pre.Split(tokenizers.Regex(pattern), "isolated")
        made.pre_tokenizer = pre.Sequence(
            [split, pre.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    made.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|user|>"],
        initial_alphabet=pre.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXT * 20, trainer)
    return json.loads(made.to_str())


def byte_fallback() -> dict[str, Any]:
    """After Llama's manner: a space is put before a text, and unknown characters are bytes."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special + [f"<0x{byte:02X}>" for byte in range(256)],
        show_progress=False,
    )
    made.train_from_iterator([TEXT[0], TEXT[2]] * 20, trainer)
    spec = json.loads(made.to_str())
    spec["added_tokens"] = spec["added_tokens"][: len(special)]
    spec["model"] |= {"byte_fallback": True, "fuse_unk": True}
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    spec["normalizer"] = {
        "type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space],
    }  # fmt: skip
    spec["pre_tokenizer"] = None
    spec["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    template = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [template, sequence],
        "pair": [template, sequence],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    spec["truncation"] = {
        "direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    return spec


def unigram(words_apart: bool = False) -> dict[str, Any]:
    """After sentencepiece's manner: a unigram model over words with a space before each.

    With `words_apart` as T5 has it, which forgets what other white space there was.
    """
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    metaspace = tokenizers.pre_tokenizers.Metaspace()
    made.pre_tokenizer = metaspace
    if words_apart:
        split = tokenizers.pre_tokenizers.WhitespaceSplit()
        made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, metaspace])
    made.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=120,
        special_tokens=["<unk>", "</s>"],
        unk_token="<unk>",
        initial_alphabet=["\n", "<", ">", "/"],
        show_progress=False,
    )
    made.train_from_iterator(TEXT * 20, trainer)
    return json.loads(made.to_str())


def word_pieces() -> dict[str, Any]:
    """After BERT's manner, which forgets white space."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=120, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    made.train_from_iterator(TEXT * 20, trainer)
    return json.loads(made.to_str())


def written(folder: Path, spec: dict[str, Any], **settings: Any) -> Path:
    """A folder with the tokenizer, and settings beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder
