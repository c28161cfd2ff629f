"""The trackers, Weights & Biases, TensorBoard and Trackio: each as one class of one shape."""

from __future__ import annotations

import contextlib
import html
import importlib.util
import io
import json
import netrc
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from mlx_pam.errors import ConfigError

PROJECT = "mlx_pam"
WANDB_HOST = "api.wandb.ai"
"""Under which older accounts are kept, wherever the server is now."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a tracker is told when a session of a run begins."""

    folder: Path
    """The run folder, which exists."""
    id: str
    """Of the run: the same in all of its sessions, and no other run's."""
    resumed: int | None
    """The step after which the run goes on, None if it begins."""
    config: dict[str, Any]


class Tracker(Protocol):
    """One tracker's side of a session; whatever it raises, the run goes on."""

    rewinds: bool
    """Whether it forgets the steps beyond `TrackedRun.resumed`, which then come again."""
    where: str
    """Where to look, in a few words or as a command."""

    def __init__(self, run: TrackedRun) -> None: ...

    def log(self, step: int, numbers: dict[str, float], texts: dict[str, str]) -> None: ...

    def flush(self) -> None: ...

    def close(self, failed: bool) -> None: ...


class WandB:
    """Weights & Biases: online with an account, else a folder that `wandb sync` uploads.

    W&B cannot go on with a run offline: there each session is a run of its own, all in one group.
    """

    rewinds = False

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        server = wandb.setup().settings.base_url
        offline = "WANDB_MODE" not in os.environ and not _has_wandb_account(server)
        alone = offline or os.environ.get("WANDB_MODE") == "offline"
        name = run.folder.resolve().name
        self._html = wandb.Html
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            group=run.id,
            id=None if alone else run.id,
            name=f"{name} from step {run.resumed}" if alone and run.resumed else name,
            dir=run.folder,
            config=run.config,
            allow_val_change=True,
            resume=None if alone else "allow",
            mode="offline" if offline else None,
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        upload = f"wandb sync {Path(self._run.dir).parent}"
        self.where = upload if self._run.offline else self._run.url or "nowhere"

    def log(self, step: int, numbers: dict[str, float], texts: dict[str, str]) -> None:
        pages = {
            name: self._html(f"<pre>{html.escape(text)}</pre>") for name, text in texts.items()
        }
        self._run.log({"step": step} | numbers | pages)

    def flush(self) -> None:
        pass  # a process of its own writes as it goes

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class TensorBoard:
    """Event files under the run folder, one for each session."""

    rewinds = True

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run.folder / "tensorboard"
        self.where = f"tensorboard --logdir {folder}"
        self._event, self._summary, self._text = Event, Summary, text_pb
        self._writer = EventFileWriter(str(folder), flush_secs=30)
        begin = 0 if run.resumed is None else run.resumed + 1
        restart = SessionLog(status=SessionLog.START)  # what earlier files hold from here on goes
        self._writer.add_event(Event(step=begin, wall_time=time.time(), session_log=restart))
        self.log(begin, {}, {"config": json.dumps(run.config, indent=2)})

    def log(self, step: int, numbers: dict[str, float], texts: dict[str, str]) -> None:
        summary = self._summary(
            value=[self._summary.Value(tag=tag, simple_value=x) for tag, x in numbers.items()]
        )
        for tag, text in texts.items():
            summary.MergeFrom(self._text(tag, _as_code(text)))
        self._writer.add_event(self._event(step=step, wall_time=time.time(), summary=summary))

    def flush(self) -> None:
        self._writer.flush()

    def close(self, failed: bool) -> None:
        self._writer.close()


class Trackio:
    """A data base in Trackio's own folder, `TRACKIO_DIR`."""

    rewinds = False

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self.where = f"trackio show --project {PROJECT}"
        name = f"{run.folder.resolve().name}-{run.id}"
        self._trackio = trackio
        with contextlib.redirect_stdout(io.StringIO()):  # stdout is the user's
            trackio.init(PROJECT, name=name, config=run.config, resume="allow")

    def log(self, step: int, numbers: dict[str, float], texts: dict[str, str]) -> None:
        pages = {name: self._trackio.Markdown(_as_code(text)) for name, text in texts.items()}
        self._trackio.log(numbers | pages, step=step)

    def flush(self) -> None:
        pass  # a thread of its own writes twice a second

    def close(self, failed: bool) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()


TRACKERS: dict[str, type[Tracker]] = {
    "wandb": WandB,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
}
"""name -> its class; the name is also that of the package."""


def require_trackers(names: Sequence[str]) -> None:
    """Raise `ConfigError` with the command that installs them unless all trackers are installed."""
    found = {name: importlib.util.find_spec(name) for name in names}
    absent = [name for name, spec in found.items() if spec is None or spec.origin is None]
    if absent:  # without an origin it is a mere folder of that name, such as W&B leaves
        packages = " ".join(absent)
        raise ConfigError(
            f"track must name trackers that are installed, got {packages}: pip install {packages}"
        )


def _as_code(text: str) -> str:
    """Markdown that shows a text as it is."""
    return "\n".join("\t" + line for line in text.splitlines())


def _has_wandb_account(server: str) -> bool:
    """Whether a key is in the environment or, where `wandb login` puts it, in the .netrc file."""
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        accounts = netrc.netrc(os.environ.get("NETRC"))
        if any(accounts.authenticators(host) for host in (urlsplit(server).hostname, WANDB_HOST)):
            return True
    return "WANDB_API_KEY" in os.environ
