"""`mlx_pam generate`: continue a prompt with a trained model."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlx_pam.cli.arguments import parse
from mlx_pam.cli.outputs import require_output
from mlx_pam.config import require_choice
from mlx_pam.errors import DataError
from mlx_pam.generate import GenerationConfig, Stream, stream

if TYPE_CHECKING:
    from mlx_pam.language_model import LanguageModel

HELP = "write text from a checkpoint"


@dataclass(frozen=True, kw_only=True)
class _Command:
    """What the command asks for beside the settings of the generation; listed first in its help."""

    checkpoint: Path | None = None
    """Checkpoint folder, RUN (its newest) or RUN/best; by default the newest in runs/."""
    prompt: str = "-"
    """Text to continue; - reads it from stdin, without one newline at its end."""
    state: Path | None = None
    """Saved state of a text to go on with; the prompt is added to it, and - is no prompt then."""
    save_state: Path | None = None
    """File for the state of the text when all is written, to go on with it later."""
    no_echo: bool = False
    """Print the continuation without the prompt before it."""
    json: bool = False
    """Print one JSON object instead, when all is done."""
    backend: Literal["auto", "mlx", "torch"] = "auto"
    """Array library that does the work."""


@dataclass(frozen=True, kw_only=True)
class GenerateArguments(GenerationConfig, _Command):
    """Continue a prompt with a trained model.

    The prompt is printed and then its continuation, as it comes; seed, speed and the reason for the
    end go to stderr. An empty prompt starts from the end-of-text token, the mark between documents.
    With --max-tokens 0 the prompt is all that is printed.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("backend", self.backend, ("auto", "mlx", "torch"))
        if self.save_state is not None:
            require_output("save_state", self.save_state)


def run(argv: list[str]) -> int:
    description = inspect.getdoc(GenerateArguments) or HELP
    arguments = parse(GenerateArguments, argv, prog="mlx_pam generate", description=description)
    given = arguments.prompt.encode("utf-8", "surrogateescape")  # the bytes of the command line
    if given == b"-":
        given = b"" if arguments.state else _from_stdin()
    prompt = _text(given)

    from mlx_pam.language_model import load, newest_run
    from mlx_pam.text_state import load_state

    model = load(arguments.checkpoint or newest_run(), arguments.backend)
    state = load_state(model, arguments.state) if arguments.state else None
    fields = dataclasses.fields(GenerationConfig)
    config = GenerationConfig(**{field.name: getattr(arguments, field.name) for field in fields})
    pieces = stream(model, prompt, config, state=state)
    if arguments.json:
        _print_record(model, pieces)
    else:
        _print_text(prompt, pieces, echo=not arguments.no_echo)
    if arguments.save_state:
        pieces.state().save(arguments.save_state)
    return 0


def _from_stdin() -> bytes:
    """All of stdin, without one newline at its end."""
    if sys.stdin.isatty():
        print("type the prompt; end it with a newline and Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer.read().removesuffix(b"\n").removesuffix(b"\r")


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"the prompt must be UTF-8, got byte {data[error.start]:#04x} at offset {error.start}: "
            "convert it"
        ) from None


def _print_record(model: LanguageModel, pieces: Stream) -> None:
    for _ in pieces:
        pass
    record = dataclasses.asdict(pieces.result())
    record |= {"checkpoint": str(model.path), "backend": model.backend.name}
    print(json.dumps(record))


def _print_text(prompt: str, pieces: Stream, *, echo: bool) -> None:
    if echo:
        print(prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
    result = pieces.result()
    print(
        f"{len(result.tokens)} tokens · {result.tokens_per_s:.0f} tokens/s · "
        f"seed {result.seed} · ended by {result.finish_reason}",
        file=sys.stderr,
    )
