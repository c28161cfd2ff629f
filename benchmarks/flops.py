"""Operations of the matrix products, per token of a forward pass; a training step takes three times
as many, for every product has two gradients of its own size.

A product [m, n] @ [n, p] counts 2 m n p. With D width, E D hidden width, H heads of width d, L
layers, V vocabulary, T tokens of a window and C of a chunk, n = min(T / C, CHUNKS_PER_SPAN) chunks:

    PAM          per layer: maps       P (3 E D^2 + 4 D H d)  with P = 8 (a complex map of n to m
                                       takes 4 real products, 8 n m) or 6 (3 real products)
                            gates      6 D H
                            memory     H (16 C d + 16 d^2 + 4 n d^2 / C)  chunkwise, or
                                       16 H T d  in the T x T form
                 head       P D^2 + 4 D V
    transformer  per layer: maps       8 D H d + 6 D F
                            attention  2 (T + 1) H d  where the future is left out, or
                                       4 T H d  where it is computed and masked
                 head       2 D V

At an equal rate of operations the ratio of tokens/s is the inverse ratio of the counts: the bound.
"""

from __future__ import annotations

from mlx_pam.config import PAMConfig, TransformerConfig

Counts = dict[str, float]
"""Operations per token by part, and their `total`."""


def pam(
    config: PAMConfig,
    seq_len: int,
    *,
    chunk: int | None,
    chunks_per_span: int = 1,
    products: int = 4,
) -> Counts:
    """Of a PAM whose memory is read in chunks, or with `chunk=None` in the T x T form."""
    c, d = config, config.head_dim
    per_map = 2 * products
    memory = 16 * seq_len * d
    if chunk is not None:
        chunk = min(chunk, seq_len)
        chunks = min(-(-seq_len // chunk), chunks_per_span)
        memory = 16 * chunk * d + 16 * d**2 + 4 * chunks * d**2 / chunk
    return _with_total(
        maps=c.num_layers * per_map * (3 * c.expand * c.dim**2 + 4 * c.dim * c.memory_dim),
        gates=c.num_layers * 6 * c.dim * c.num_heads,
        memory=c.num_layers * c.num_heads * memory,
        head=per_map * c.dim**2 + 4 * c.dim * c.vocab_size,
    )


def transformer(config: TransformerConfig, seq_len: int, *, causal: bool = True) -> Counts:
    """Of a transformer, the future left out of its attention or computed and masked."""
    c = config
    seen = (seq_len + 1) / 2 if causal else seq_len
    return _with_total(
        maps=c.num_layers * (8 * c.dim * c.memory_dim + 6 * c.dim * c.hidden_dim),
        attention=c.num_layers * 4 * seen * c.memory_dim,
        head=2 * c.dim * c.vocab_size,
    )


def _with_total(**parts: float) -> Counts:
    return {**parts, "total": sum(parts.values())}
