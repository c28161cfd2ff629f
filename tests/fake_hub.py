"""A few answers of the Hugging Face hub, from this machine: one data set of two configurations."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs, unquote, urlparse

import pyarrow
import pyarrow.parquet

from mlx_pam.data import wikitext

LINES = ["", " = Al = \n", "", " of a . \n", " = = Part = = \n", "", " = Be = \n", "", " of b . \n"]


def parquet(rows: list[str]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), file)
    return file.getvalue()


def data_files(config: str) -> str:
    return "".join(
        f"  - split: {split}\n    path: {config}/{split}-*\n" for split in ("train", "validation")
    )


CONFIGS = [*wikitext.CONFIGS.values()]
CARD = "".join(f"- config_name: {name}\n  data_files:\n{data_files(name)}" for name in CONFIGS)
FILES = {"README.md": f"---\nconfigs:\n{CARD}---\n".encode()} | {
    f"{config}/{split}-00000-of-00001.parquet": parquet(LINES * times)
    for config in CONFIGS
    for split, times in (("train", 3), ("validation", 1))
}
API = f"/api/datasets/{wikitext.REPOSITORY}"
FETCH = f"/datasets/{wikitext.REPOSITORY}/resolve/{wikitext.REVISION}/"


class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = unquote(urlparse(self.path).path)
        if path in (API, f"{API}/revision/{wikitext.REVISION}"):
            self.say({"id": wikitext.REPOSITORY, "sha": wikitext.REVISION, "siblings": []})
        elif path.startswith(f"{API}/tree/{wikitext.REVISION}"):
            folder = path.removeprefix(f"{API}/tree/{wikitext.REVISION}").strip("/")
            names = {*FILES, *CONFIGS}
            self.say([entry(name) for name in names if name.rpartition("/")[0] == folder])
        elif (name := path.removeprefix(FETCH)) in FILES:
            self.say(FILES[name])
        else:
            code = "EntryNotFound" if path.startswith(FETCH) else "RepoNotFound"
            self.say(b"", 404, {"X-Error-Code": code})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = "json" not in self.headers["Content-Type"]
        paths = (parse_qs(body) if form else json.loads(body))["paths"]
        self.say([entry(name) for name in paths if name in FILES or name in CONFIGS])

    def say(self, answer: object, code: int = 200, headers: dict[str, str] | None = None) -> None:
        raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        known = {"ETag": f'"{digest(raw)}"', "X-Repo-Commit": wikitext.REVISION}
        for name, value in {**known, "Content-Length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


def entry(name: str) -> dict[str, object]:
    raw = FILES.get(name, b"")
    kind = "file" if raw else "directory"
    return {"type": kind, "path": name, "size": len(raw), "oid": digest(raw)}


def digest(raw: bytes) -> str:
    return hashlib.sha1(raw).hexdigest()


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """The address of a hub that answers while the context lasts."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
