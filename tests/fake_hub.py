"""A few answers of the Hugging Face hub, from this machine, about three data sets."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import json
import re
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs, unquote, urlparse

import pyarrow
import pyarrow.parquet

from mlx_pam.data import wikitext

LINES = ["", " = Al = \n", "", " of a . \n", " = = Part = = \n", "", " = Be = \n", "", " of b . \n"]


def parquet(rows: list[str], group: int | None = None) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), file, row_group_size=group)
    return file.getvalue()


def jsonl(rows: list[str]) -> bytes:
    return gzip.compress("".join(json.dumps({"text": row}) + "\n" for row in rows).encode())


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
PAGES, LINES_OF_JSON, BOOKS = "owner/pages", "owner/lines", "owner/books"
PAGE = [[f"page {shard} {row}" + " word" * (row % 7) for row in range(30)] for shard in range(3)]
REPOSITORIES = {
    wikitext.REPOSITORY: FILES,
    PAGES: {
        f"data/train-0000{shard}-of-00003.parquet": parquet(rows, group=7)
        for shard, rows in enumerate(PAGE)
    },
    LINES_OF_JSON: {
        "train.jsonl.gz": jsonl([row for rows in PAGE for row in rows]),
        "validation.jsonl.gz": jsonl([f"held out {row}" for row in range(9)]),
    },
    BOOKS: {"train.txt": b"a line\nanother\n"},
}
API, FETCH, AT = "/api/datasets/", "/datasets/", wikitext.REVISION


class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = unquote(urlparse(self.path).path)
        for repository, files in REPOSITORIES.items():
            api, fetch = API + repository, f"{FETCH}{repository}/resolve/{AT}/"
            if path in (api, f"{api}/revision/{AT}"):
                self.say({"id": repository, "sha": AT, "siblings": []})
            elif path.startswith(f"{api}/tree/{AT}"):
                folder = path.removeprefix(f"{api}/tree/{AT}").strip("/")
                within = [name for name in names(files) if name.rpartition("/")[0] == folder]
                self.say([entry(name, files) for name in within])
            elif (name := path.removeprefix(fetch)) in files:
                self.say_part(files[name])
            elif path.startswith(fetch):
                self.say(b"", 404, {"X-Error-Code": "EntryNotFound"})
            else:
                continue
            return
        self.say(b"", 404, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = "json" not in self.headers["Content-Type"]
        paths = (parse_qs(body) if form else json.loads(body))["paths"]
        for repository, files in REPOSITORIES.items():
            if self.path.startswith(f"{API}{repository}/"):
                self.say([entry(name, files) for name in paths if name in names(files)])

    def say_part(self, raw: bytes) -> None:
        """The bytes that are asked for."""
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self.say(raw, part_of=raw)
        else:
            first, last = int(wanted[1]), int(wanted[2] or len(raw) - 1)
            part = raw[first : last + 1]
            shown = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(raw)}"}
            self.say(part, 206, shown, part_of=raw)

    def say(
        self,
        answer: object,
        code: int = 200,
        headers: dict[str, str] | None = None,
        part_of: bytes = b"",
    ) -> None:
        raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        known = {"ETag": f'"{digest(part_of or raw)}"', "X-Repo-Commit": AT}
        for name, value in {**known, "Content-Length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


def names(files: dict[str, bytes]) -> set[str]:
    """Files and folders, but for the root."""
    return {*files, *(name.rpartition("/")[0] for name in files)} - {""}


def entry(name: str, files: dict[str, bytes]) -> dict[str, object]:
    raw = files.get(name, b"")
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
