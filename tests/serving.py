"""A server in this process, and requests to it, well-formed or not; imported by tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

from mlx_pam.language_model import LanguageModel
from mlx_pam.server import CompletionServer


@contextlib.contextmanager
def serving(model: LanguageModel) -> Iterator[CompletionServer]:
    """A server of this model on a port of its own."""
    with CompletionServer("127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve, args=(model,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    server: CompletionServer,
    path: str,
    body: object = None,
    *,
    method: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """Status and JSON of the answer; a body that is neither bytes nor None is sent as JSON."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    status, text = exchange(server, method or ("GET" if data is None else "POST"), path, data,
                            headers or {})  # fmt: skip
    return status, json.loads(text)


def events(server: CompletionServer, **body: Any) -> list[dict[str, Any]]:
    """What a streamed completion sends, without the mark of its end."""
    data = json.dumps(body | {"stream": True}).encode()
    status, text = exchange(server, "POST", "/v1/completions", data, {})
    assert status == 200, text
    *parts, done, rest = text.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


def exchange(
    server: CompletionServer, method: str, path: str, data: bytes | None, headers: dict[str, str]
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    with contextlib.closing(connection):
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
