"""Start two processes that find one another, as torchrun and mlx.launch do; imported by tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
SECONDS = 1800  # only what hangs takes as long, on a busy machine too
QUIET = {
    "TORCH_COMPILE_DISABLE": "1", "MLX_DISABLE_COMPILE": "1", "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How the processes ended; `code` is 0 if all did well."""

    code: int
    stdout: str
    stderr: str


def launch(backend: str, script: Sequence[str], folder: Path) -> Ended:
    """Run a Python script with its arguments in two processes of a backend."""
    environment = os.environ | QUIET
    if backend == "torch":
        command = [sys.executable, *TORCHRUN, *script]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
        return Ended(done.returncode, done.stdout, done.stderr)
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(2)]))
    started = [
        subprocess.Popen(
            [sys.executable, *script],
            env=environment | {"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(rank)},
            stdout=(folder / f"stdout-{rank}").open("w"),
            stderr=(folder / f"stderr-{rank}").open("w"),
        )
        for rank in (0, 1)
    ]
    try:
        codes = [process.wait(SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    stdout, stderr = (
        "".join((folder / f"{name}-{rank}").read_text() for rank in (0, 1))
        for name in ("stdout", "stderr")
    )
    return Ended(max(codes), stdout, stderr)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports
