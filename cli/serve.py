"""`mlx_pam serve`: answer completion requests over HTTP with a trained model."""

from __future__ import annotations

import inspect
import ipaddress
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlx_pam.cli.arguments import parse
from mlx_pam.config import require, require_choice, require_count

ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/,]+")
HELP = "answer completion requests over HTTP"


@dataclass(frozen=True, kw_only=True)
class ServeArguments:
    """Serve a trained model over HTTP.

    POST /v1/completions takes and gives what OpenAI's completions do; GET /v1/models and /health
    tell what is served. Ctrl-C ends it. There is no authentication.
    """

    checkpoint: Path | None = None
    """Checkpoint folder, RUN (its newest) or RUN/best; by default the newest in runs/."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every one that this machine has."""
    port: int = 8080
    """Port to listen on; 0 takes one that is free."""
    max_prompt_tokens: int = 32768
    """Longest prompt that is accepted; one client's prompt keeps the others waiting."""
    allow_origin: str | None = None
    """Let web pages of this origin read the answers, as in http://localhost:3000, or * for all."""
    backend: Literal["auto", "mlx", "torch"] = "auto"
    """Array library that does the work."""

    def __post_init__(self) -> None:
        require_count("port", self.port, least=0, most=65535)
        require_count("max_prompt_tokens", self.max_prompt_tokens)
        origin = self.allow_origin is None or bool(ORIGIN.fullmatch(self.allow_origin))
        require(origin, "allow_origin", "SCHEME://HOST[:PORT] or *", self.allow_origin)
        require_choice("backend", self.backend, ("auto", "mlx", "torch"))


def run(argv: list[str]) -> int:
    description = inspect.getdoc(ServeArguments) or HELP
    arguments = parse(ServeArguments, argv, prog="mlx_pam serve", description=description)

    from mlx_pam.language_model import load, newest_run
    from mlx_pam.server import CompletionServer

    with CompletionServer(
        arguments.host, arguments.port, arguments.max_prompt_tokens, arguments.allow_origin
    ) as server:
        if not ipaddress.ip_address(server.server_name).is_loopback:
            print(
                f"warning: {server.url} can be reached from other machines, without authentication",
                file=sys.stderr,
            )
        model = load(arguments.checkpoint or newest_run(), arguments.backend)
        print(f"{model.path} at {server.url}/v1/completions; Ctrl-C ends it", flush=True)
        server.serve(model)
    print("stopped", file=sys.stderr)
    return 0
