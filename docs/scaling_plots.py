"""Plots of scaling, of means that the paper publishes."""

from __future__ import annotations

from matplotlib.figure import Figure

from mlx_pam.analysis.scaling import study
from mlx_pam.analysis.scaling_drawing import draw_scaling
from mlx_pam.analysis.scaling_published import published_points


def scaling_published() -> Figure:
    """What `mlx_pam scaling --published --out` draws."""
    return draw_scaling(study(published_points()))
