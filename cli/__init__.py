"""The command `mlx_pam`: finds the command that is named and hands it the rest of the line."""

from __future__ import annotations

import difflib
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence

import mlx_pam
from mlx_pam.errors import ConfigError, MlxPamError

# name: (module with `run(argv) -> int`, what it does). A module is imported when it is named.
COMMANDS = {
    "train": ("mlx_pam.cli.train", "train a model on text, or go on with a run"),
    "sweep": ("mlx_pam.cli.sweep", "train models of several families, scales and seeds"),
    "data": ("mlx_pam.cli.data", "list the corpora whose tokens are kept, or remove some"),
    "runs": ("mlx_pam.cli.runs", "list the runs in a folder, and where each stands"),
    "plot": ("mlx_pam.cli.plot", "draw the curves of runs"),
    "scaling": ("mlx_pam.cli.scaling", "fit how losses fall with size, and where families meet"),
    "generate": ("mlx_pam.cli.generate", "write text from a checkpoint"),
    "serve": ("mlx_pam.cli.serve", "answer completion requests over HTTP"),
    "evaluate": ("mlx_pam.cli.evaluate", "loss, perplexity and bits per byte of a checkpoint"),
    "bench": ("mlx_pam.cli.bench", "what the memory and decoding take here, beside a cost model"),
    "selftest": ("mlx_pam.cli.selftest", "hold every form of the memory against an exact loop"),
}
EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPT, EXIT_BROKEN_PIPE = 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error of the user's is one line on stderr."""
    code = _answer(list(sys.argv[1:] if argv is None else argv))
    if argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a Ctrl-C as Python ends is no traceback
    return code


def _answer(words: list[str]) -> int:
    """Run the command that the words are; the exit code, whatever becomes of it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without a character shows ? for it
    try:
        code = _dispatch(words)
        sys.stdout.flush()  # a closed pipe shows here, not when the interpreter ends
        return code
    except SystemExit as stop:  # the option parser's --help
        return int(stop.code or 0)
    except MlxPamError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:  # what the system refuses, with the name of the file
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR


def overview() -> str:
    """What `mlx_pam --help` prints."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {does}" for name, (_, does) in COMMANDS.items())
    return f"""\
usage: mlx_pam COMMAND [OPTIONS]

Phase-Associative Memory language models: train one, then generate from it.

commands:
{commands}

options:
  -h, --help  show this page; after a command, its options
  --version   show the version"""


def near_miss(word: str, known: Sequence[str]) -> str:
    """`; did you mean X?` if one of the known words is close to this one, else nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"mlx_pam {mlx_pam.__version__}")
        return 0
    name, *rest = words
    if name not in COMMANDS:
        hint = near_miss(name, [*COMMANDS, "--help", "--version"])
        kind = "option" if name.startswith("-") else "command"
        raise ConfigError(
            f"there is no {kind} {name!r}{hint}\n"
            f"usage: mlx_pam COMMAND [OPTIONS]; commands: {', '.join(COMMANDS)}"
        )
    module, _ = COMMANDS[name]
    return importlib.import_module(module).run(rest)
