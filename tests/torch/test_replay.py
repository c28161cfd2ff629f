"""A step recorded once and replayed over its own state is the step itself, on any device."""

from __future__ import annotations

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mlx_pam import compilers  # noqa: E402
from mlx_pam.backend import get_backend  # noqa: E402
from mlx_pam.config import PAMConfig, SAMConfig, TransformerConfig  # noqa: E402
from mlx_pam.torch import replay, runtime  # noqa: E402

SIZES = {"dim": 16, "num_layers": 2, "num_heads": 2, "head_dim": 8, "vocab_size": 61}
every_memory = pytest.mark.parametrize(
    "config",
    [PAMConfig(**SIZES), PAMConfig(conv_width=4, **SIZES), SAMConfig(**SIZES)],
    ids=["pam", "convolution", "sam"],
)
PROMPTS = [[3, 1, 4], [1, 5]]
TOKENS = np.array([[9, 2], [6, 5], [3, 5]])


def run_again(run):
    """A recording without a GPU: what was run is run again. It leaves its traces, as a graph's."""
    run()
    return run


def decoders(config, monkeypatch, record=run_again):
    """A decoder that runs every step and one that replays it, of one model."""
    recorded = functools.partial(replay.Replayed, record=record)
    monkeypatch.setattr(runtime, "Replayed", recorded)
    backend = get_backend("torch")
    model = backend.build(config, seed=3)
    plain = backend.Decoder(model, runtime.REPLAYED_FROM)
    monkeypatch.setattr(runtime, "can_replay", lambda _: True)
    return plain, backend.Decoder(model, runtime.REPLAYED_FROM)


@every_memory
def test_replayed_steps_and_their_state_are_the_steps_to_the_bit(config, monkeypatch) -> None:
    plain, replayed = decoders(config, monkeypatch)
    for _ in range(2):  # the second prompt takes the place of the first
        np.testing.assert_array_equal(replayed.prefill(PROMPTS), plain.prefill(PROMPTS))
        for row in TOKENS:
            np.testing.assert_array_equal(replayed.step(row), plain.step(row))
        expected = plain.state()
        for name, array in replayed.state().items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_a_replayed_state_stays_where_it_lies(monkeypatch) -> None:
    _, replayed = decoders(PAMConfig(**SIZES), monkeypatch)
    replayed.prefill(PROMPTS)
    replayed.step(TOKENS[0])
    places = [memory.data_ptr() for memory in replayed._memories]
    replayed.step(TOKENS[1])
    assert [memory.data_ptr() for memory in replayed._memories] == places


def test_a_restored_state_is_taken_up_by_the_steps_after_it(monkeypatch) -> None:
    plain, replayed = decoders(PAMConfig(**SIZES), monkeypatch)
    for decoder in (plain, replayed):
        decoder.prefill(PROMPTS)
        decoder.step(TOKENS[0])
    saved = plain.state()
    expected = plain.step(TOKENS[1])
    replayed.step(TOKENS[2])
    replayed.restore(saved)
    np.testing.assert_array_equal(replayed.step(TOKENS[1]), expected)


def test_a_step_that_cannot_be_recorded_runs_as_it_is_and_says_so_once(monkeypatch, capsys) -> None:
    def fails(run):
        run()
        raise RuntimeError("operation not permitted when stream is capturing")

    compilers.note.cache_clear()
    plain, replayed = decoders(PAMConfig(**SIZES), monkeypatch, record=fails)
    for decoder in (plain, replayed):
        decoder.prefill(PROMPTS)
    for row in TOKENS:
        np.testing.assert_array_equal(replayed.step(row), plain.step(row))
    told = capsys.readouterr().err
    assert told.startswith("note: decoding without a CUDA graph, slower: operation not permitted")
    assert told.count("\n") == 1


def test_only_a_memory_in_cuda_is_replayed() -> None:
    backend = get_backend("torch")
    if backend.device != "cuda":
        assert not runtime.can_replay(backend.build(PAMConfig(**SIZES), seed=3))
    assert not runtime.can_replay(backend.build(TransformerConfig(**SIZES), seed=3))


@pytest.mark.parametrize(("tokens", "compiles"), [(20, False), (runtime.COMPILED_FROM, True)])
def test_a_short_text_is_not_worth_the_compiler(tokens, compiles, monkeypatch) -> None:
    monkeypatch.setattr(runtime, "can_compile", lambda _: True)
    asked = []
    monkeypatch.setattr(runtime, "compile_layers", asked.append)
    backend = get_backend("torch")
    backend.Decoder(backend.build(PAMConfig(**SIZES), seed=3), tokens)
    assert bool(asked) is compiles


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@every_memory
def test_a_cuda_graph_gives_the_logits_of_the_steps(config) -> None:
    backend = get_backend("torch")
    model = backend.build(config, seed=3)
    plain, replayed = (backend.Decoder(model, tokens) for tokens in (0, runtime.REPLAYED_FROM))
    for decoder in (plain, replayed):
        decoder.prefill(PROMPTS)
    for row in TOKENS:
        np.testing.assert_allclose(replayed.step(row), plain.step(row), atol=1e-5)
    assert replayed._replayed is not None
