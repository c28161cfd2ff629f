"""What every test shares: the oracle on the path, and property tests that repeat themselves."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import settings

from mlx_pam import blas
from mlx_pam.backend import Backend, get_backend

# compiling a step takes longer than a test's few steps
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")

# what a shell starts in the background ignores Ctrl-C, and so would the processes of tests
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and (
    threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

sys.path.insert(0, str(Path(__file__).parent))  # `import oracle`: test folders are not packages
blas.preload()  # tests import mlx themselves, and the BLAS must be chosen before

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(
    params=[
        "mlx",
        pytest.param(
            "torch",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
            ),
        ),
    ]
)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend in turn."""
    return get_backend(request.param)
