"""The formulas for operations against PyTorch's counter, on models where every term weighs."""

from __future__ import annotations

import numpy as np
import pytest

from mlx_pam.backend import get_backend
from mlx_pam.benchmarks import flops
from mlx_pam.config import PAMConfig, TransformerConfig, recipe_for
from mlx_pam.parameters import initial_weights

torch = pytest.importorskip("torch")
attention = pytest.importorskip("torch.nn.attention")
counting = pytest.importorskip("torch.utils.flop_counter")
naive = pytest.importorskip("mlx_pam.benchmarks.naive")
retrieval = pytest.importorskip("mlx_pam.torch.ops.retrieval")

PAM = PAMConfig(dim=16, num_layers=2, num_heads=4, head_dim=16, vocab_size=64)
TRANSFORMER = TransformerConfig(dim=24, num_layers=2, num_heads=2, head_dim=8, vocab_size=64)
CHUNKS = {
    "chunk": retrieval.chunk_size(PAM.head_dim),
    "chunks_per_span": retrieval.CHUNKS_PER_SPAN,
}
SEQ_LEN = 128


def counted(function) -> float:
    """Operations per token of what the function does with one window.

    Attention runs as its two products: the counter does not know the CPU's fused one.
    """
    two_products = attention.sdpa_kernel(attention.SDPBackend.MATH)
    with two_products, counting.FlopCounterMode(display=False) as counter:
        function(np.random.default_rng(0).integers(0, 64, (1, SEQ_LEN + 1), np.int32))
    return counter.get_total_flops() / SEQ_LEN


def forward(model):
    return lambda batch: model(torch.from_numpy(batch[:, :-1]).long())


def test_pam_in_chunks() -> None:
    model = get_backend("torch").build(PAM)
    expected = flops.pam(PAM, SEQ_LEN, **CHUNKS)
    assert counted(forward(model)) == pytest.approx(expected["total"], rel=0.01)


def test_pam_in_the_square_form() -> None:
    model = naive.NaivePAM(PAM, initial_weights(PAM))
    expected = flops.pam(PAM, SEQ_LEN, chunk=None)
    assert counted(forward(model)) == pytest.approx(expected["total"], rel=1e-6)


def test_transformer() -> None:
    model = get_backend("torch").build(TRANSFORMER)
    expected = flops.transformer(TRANSFORMER, SEQ_LEN, causal=False)  # as two products do it
    assert counted(forward(model)) == pytest.approx(expected["total"], rel=1e-6)


@pytest.mark.parametrize("config", [PAM, TRANSFORMER], ids=["pam", "transformer"])
def test_a_training_step_takes_three_times_the_forward_pass(config) -> None:
    backend = get_backend("torch")
    model = backend.build(config)
    learner = backend.Learner(model, recipe_for("tuned", "pam", "5m"), "float32")
    step = counted(lambda batch: learner.gradient(batch, SEQ_LEN))
    assert step == pytest.approx(3 * counted(forward(model)), rel=0.05)


def test_every_part_is_in_the_total() -> None:
    for counts in (flops.pam(PAM, SEQ_LEN, **CHUNKS), flops.transformer(TRANSFORMER, SEQ_LEN)):
        assert sum(counts.values()) == 2 * counts["total"]


def test_three_products_save_a_quarter_of_the_complex_maps_alone() -> None:
    four, three = (flops.pam(PAM, SEQ_LEN, **CHUNKS, products=n) for n in (4, 3))
    assert three["maps"] == 0.75 * four["maps"]
    assert (three["memory"], three["gates"]) == (four["memory"], four["gates"])


def test_operations_grow_with_the_window_in_the_square_form_alone() -> None:
    def memory(seq_len: int, chunk: int | None) -> float:
        return flops.pam(PAM, seq_len, chunk=chunk, chunks_per_span=32)["memory"]

    assert memory(8192, None) == 16 * memory(512, None)
    assert memory(8192, 32) == memory(1024, 32)
