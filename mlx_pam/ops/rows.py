"""Rows of a table by number, and sums of rows by number: fast, or in an order that is fixed.

A GPU adds up rows of one number with atomic operations, in an order that differs from run to run.
Deterministic sums sort the rows and add neighbors, so that they are the same to the bit.

N rows of values   V rows of the table   E width
"""

from __future__ import annotations

import mlx.core as mx


def lookup(table: mx.array, ids: mx.array, deterministic: bool = False) -> mx.array:
    """table[ids]: `[V, ...]`, `[B, T]` -> `[B, T, ...]`; deterministic: its gradient is."""
    return _deterministic_lookup(table, ids) if deterministic else table[ids]


def add_up(values: mx.array, ids: mx.array, rows: int, deterministic: bool = False) -> mx.array:
    """total[v] = sum of values[n] over ids[n] = v: `[N, E]`, `[N]` -> `[V, E]` in float32."""
    values = values.astype(mx.float32)
    if deterministic:
        ids, values = _totals_last(ids, values)
    return mx.zeros((rows, values.shape[1])).at[ids].add(values)


def _totals_last(ids: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
    """Sorted ids, and values that are 0 but for the last row of each id, which has their sum."""
    order = mx.argsort(ids)
    ids, values = ids[order], values[order]
    shift = 1
    while shift < ids.size:  # each row has the sum of the `shift` rows of its id up to it
        same = (ids[shift:] == ids[:-shift])[:, None]
        before = mx.where(same, values[:-shift], 0.0)
        values = mx.concatenate([values[:shift], values[shift:] + before])
        shift *= 2
    last = mx.concatenate([ids[1:] != ids[:-1], mx.array([True])])
    return ids, mx.where(last[:, None], values, 0.0)


@mx.custom_function
def _deterministic_lookup(table: mx.array, ids: mx.array) -> mx.array:
    return table[ids]


@_deterministic_lookup.vjp
def _lookup_vjp(primals, cotangent, _):
    table, ids = primals
    total = add_up(cotangent.reshape(ids.size, -1), mx.flatten(ids), table.shape[0], True)
    return total.reshape(table.shape).astype(table.dtype), mx.zeros_like(ids)
