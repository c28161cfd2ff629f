"""How a simdgroup matrix lies over the lanes: all kernels rely on it, Apple does not state it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_pam.ops.metal import launch

SOURCE = """
const Place at = place_of(thread_index_in_simdgroup);
const uint lane = thread_index_in_simdgroup;
places[2 * lane] = at.row;
places[2 * lane + 1] = at.column;

// a from the documented load, b as the kernels fill it; both ways must agree in the product
simdgroup_matrix<float, 8, 8> from_memory;
simdgroup_load(from_memory, a, 8);
loaded[8 * at.row + at.column] = from_memory.thread_elements()[0];
loaded[8 * at.row + at.column + 1] = from_memory.thread_elements()[1];

const ComplexTile x = load_tile<2>(a, 8, 1, 64, at), y = load_tile<2>(b, 8, 1, 64, at);
store_tile<2>(product, 8, 64, add_product<2, false>(zero_tile(), x, y), at);
store_tile<2>(conjugate, 8, 64, add_product<2, true>(zero_tile(), x, y), at);
"""


@pytest.mark.kernels
@pytest.mark.usefixtures("machine")
def test_a_lane_holds_the_numbers_that_the_kernels_expect():
    kernel = mx.fast.metal_kernel(
        name="mlx_pam_layout",
        input_names=["a", "b"],
        output_names=["places", "loaded", "product", "conjugate"],
        source=SOURCE,
        header=launch.text("tiles"),
    )
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 2, 8, 8)).astype(np.float32)
    places, loaded, product, conjugate = map(
        np.array,
        kernel(
            inputs=[mx.array(a), mx.array(b)],
            grid=(32, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[(32, 2), (8, 8), (2, 8, 8), (2, 8, 8)],
            output_dtypes=[mx.int32, mx.float32, mx.float32, mx.float32],
        ),
    )
    everywhere = {(row, column) for row in range(8) for column in range(0, 8, 2)}
    assert set(map(tuple, places.tolist())) == everywhere
    assert np.array_equal(loaded, a[0])

    x, y = a[0] + 1j * a[1], b[0] + 1j * b[1]
    for found, expected in ((product, x @ y), (conjugate, x @ y.conj())):
        assert np.abs(found[0] + 1j * found[1] - expected).max() < 1e-5
