"""The diagnostics of a run: each block's line where its numbers are, in the colour of its depth."""

from __future__ import annotations

import numpy as np
import pytest

from mlx_pam.analysis.curves import Curves
from mlx_pam.errors import ConfigError

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")

from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from mlx_pam.analysis import style
from mlx_pam.analysis.drawing import save
from mlx_pam.analysis.layers import NUMBERED, QUANTITIES, draw_layers

EVERY = tuple(QUANTITIES)


def looked_into(blocks: int, *quantities: str, count: int = 20) -> Curves:
    """A run of so many blocks that all have these quantities, block i's being (i + 1) / blocks."""
    step = 10.0 * np.arange(1, count + 1)
    table = {"step": step, "tokens": 64 * step}
    for i in range(blocks):
        for name in quantities:
            table[f"layers.{i}.{name}"] = np.full(count, (i + 1) / blocks)
    for end in ("embedding", "head"):
        table[f"{end}.grad_norm"] = np.full(count, 2.0)
    trained = {"step": step, "tokens": 64 * step, "elapsed": 2 * step, "loss": np.full(count, 3.0)}
    return Curves({"step": trained, "diagnostics": table}, (0, 55))


def axes(figure: Figure, place: str):
    (found,) = [axes for axes in figure.axes if axes.get_label() == place]
    return found


def lines(figure: Figure, place: str) -> list:
    """Curves in a panel, marks aside."""
    return [line for line in axes(figure, place).lines if line.get_linestyle() != "None"]


def places(figure: Figure) -> list[str]:
    return [axes.get_label() for axes in figure.axes if axes.get_label() != "blocks"]


def test_every_block_has_its_line_in_every_panel():
    figure = draw_layers("run", looked_into(4, *EVERY))
    assert places(figure) == list(EVERY)
    for place in EVERY:
        drawn = [line for line in lines(figure, place) if line.get_linestyle() == "-"]
        assert [line.get_ydata()[0] for line in drawn] == [0.25, 0.5, 0.75, 1.0]
        for line in drawn:
            np.testing.assert_array_equal(line.get_xdata(), 10.0 * np.arange(1, 21))
        assert [to_hex(line.get_color()) for line in drawn] == style.shades(4)


def test_embedding_and_head_have_their_gradients_too():
    figure = draw_layers("run", looked_into(4, *EVERY))
    ends = [line for line in lines(figure, "grad_norm") if line.get_linestyle() != "-"]
    assert [line.get_ydata()[0] for line in ends] == [2.0, 2.0]
    legend = axes(figure, "grad_norm").get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["embedding", "head"]
    keys = [line._unscaled_dash_pattern for line in legend.get_lines()]
    assert keys == [line._unscaled_dash_pattern for line in ends]


@pytest.mark.parametrize("count", [2, 6, 12, 16, 32])
def test_shades_grow_lighter_with_depth_and_differ(count):
    light = [np.dot((0.2126, 0.7152, 0.0722), to_rgb(shade)) for shade in style.shades(count)]
    assert (np.diff(light) > 0).all()
    assert light[-1] < 0.8, "on white paper"


@pytest.mark.parametrize(
    ("quantities", "rows"),
    [
        (("rms", "grad_norm"), 2),
        (("rms", "grad_norm", "decay"), 2),
        (("rms", "grad_norm", "active", "decay"), 2),
        (EVERY, 2),
    ],
)
def test_a_family_has_the_panels_of_what_it_tells(quantities, rows, tmp_path):
    figure = draw_layers("run", looked_into(2, *quantities))
    assert places(figure) == list(quantities)
    found = [axes(figure, place).get_position() for place in quantities]
    assert len({round(place.y0, 3) for place in found}) == rows
    assert max(place.x1 for place in found) == pytest.approx(1 - 0.3 / 11)
    for one in found:
        assert sum(one.overlaps(other) for other in found) == 1  # itself
    save(figure, tmp_path / "x.svg")


def test_blocks_of_two_kinds_have_the_panels_of_their_kind():
    run = looked_into(4, "rms", "grad_norm")
    for block, name in ((0, "active"), (1, "active"), (2, "decay"), (3, "decay")):
        run.tables["diagnostics"][f"layers.{block}.{name}"] = np.full(20, 0.5)
    figure = draw_layers("run", run)
    shades = style.shades(4)
    for place, expected in (("active", shades[:2]), ("decay", shades[2:])):
        assert [to_hex(line.get_color()) for line in lines(figure, place)] == expected


@pytest.mark.parametrize("blocks", [1, 6, NUMBERED, NUMBERED + 1, 32])
def test_the_bar_says_which_colour_is_which_block(blocks):
    bar = axes(draw_layers("run", looked_into(blocks, *EVERY)), "blocks")
    numbers = [int(text.get_text()) for text in bar.get_xticklabels()]
    assert numbers == (list(range(blocks)) if blocks <= NUMBERED else [0, blocks - 1])
    (image,) = bar.images
    shown = image.to_rgba(image.get_array())[0]
    assert [to_hex(colour) for colour in shown] == style.shades(blocks)


@pytest.mark.parametrize(("x", "size"), [("step", 1.0), ("tokens", 64.0), ("time", 2.0 / 60)])
def test_curves_go_along_the_chosen_axis(x, size):
    figure = draw_layers("run", looked_into(2, *EVERY), x)
    for place in EVERY:
        for line in lines(figure, place):
            assert line.get_xdata()[-1] == pytest.approx(200 * size)


def test_a_long_run_is_means_without_bands_and_says_of_what():
    figure = draw_layers("run", looked_into(6, *EVERY, count=30_000), smooth=True)
    assert not axes(figure, "rms").collections
    assert len(lines(figure, "rms")) == 6
    assert any("means over 30 records" in text.get_text() for text in figure.texts)


def test_what_befell_the_run_is_marked_and_nothing_is_called_training():
    figure = draw_layers("run", looked_into(2, *EVERY), heading="what it is")
    legend = axes(figure, "rms").get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["resumed"]
    assert {"run", "what it is"} <= {text.get_text() for text in figure.texts}


def test_values_that_are_not_finite_are_gaps():
    run = looked_into(2, *EVERY)
    run.tables["diagnostics"]["layers.1.rms"][3:5] = [np.nan, np.inf]
    run.tables["diagnostics"]["head.grad_norm"][:] = np.nan
    figure = draw_layers("run", run)
    assert np.isnan(lines(figure, "rms")[1].get_ydata()).nonzero()[0].tolist() == [3, 4]
    assert len(lines(figure, "grad_norm")) == 3


def test_fields_of_others_are_passed_over():
    run = looked_into(2, *EVERY)
    others = ("layers.99999999999.rms", "layers.x.rms", "layers.1.warmth", "layers.\u0663.rms")
    run.tables["diagnostics"] |= {name: np.ones(20) for name in others}
    figure = draw_layers("run", run)
    assert len(lines(figure, "rms")) == 2
    assert places(figure) == list(EVERY)


def test_a_log_without_diagnostics_is_named():
    run = looked_into(2, *EVERY)
    del run.tables["diagnostics"]
    with pytest.raises(ConfigError, match="diagnostics must be in the log of run, got none: train"):
        draw_layers("run", run)
