"""Plots of scaling, of means that the paper publishes."""

from __future__ import annotations

from matplotlib.figure import Figure

from mlx_pam.analysis.scaling.drawing import draw_scaling
from mlx_pam.analysis.scaling.published import published_points
from mlx_pam.analysis.scaling.study import study


def scaling_published() -> Figure:
    """What `mlx_pam scaling --published --out` draws."""
    return draw_scaling(study(published_points()))
