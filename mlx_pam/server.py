"""Serves one model over HTTP: text completions in OpenAI's format, a request at a time."""

from __future__ import annotations

import dataclasses
import json
import select
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from mlx_pam.config import require
from mlx_pam.continuation import Generation, GenerationConfig
from mlx_pam.errors import ConfigError, MlxPamError
from mlx_pam.generate import Stream, stream
from mlx_pam.language_model import LanguageModel

MOST_BYTES = 1 << 20
"""Of the body of a request: about 200,000 tokens of English."""
LEFT_UNREAD = 1 << 24
"""Bytes of a refused body that are taken off the line, so that the client reads why."""
ROUTES = {"/v1/completions": "POST", "/v1/models": "GET", "/health": "GET"}
SETTINGS = {field.name for field in dataclasses.fields(GenerationConfig)} - {"logprobs"}
NEUTRAL = {"n": 1, "best_of": 1, "echo": False, "frequency_penalty": 0, "presence_penalty": 0}
"""Fields of OpenAI's that are not offered, and the value at which they ask for nothing."""
FIELDS = SETTINGS | {"prompt", "model", "stream", "user"} | set(NEUTRAL)


class CompletionServer(ThreadingHTTPServer):
    """Takes its port when it is made, so that a port in use is known before a model is loaded."""

    daemon_threads = True
    model: LanguageModel

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.turn = threading.Lock()  # whose request the model works on
        self.closing = False
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise MlxPamError(
                f"cannot listen on host {host}, port {port}: {error.strerror or error}; choose "
                "another with --host or --port"
            ) from None

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's asks for the host's name, maybe for seconds
        self.server_name, self.server_port = self.server_address[:2]

    @property
    def url(self) -> str:
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}"

    @property
    def model_id(self) -> str:
        """The checkpoint's folder and the one it lies in."""
        path = self.model.path
        return "/".join(path.resolve().parts[-2:]) if path else "model"

    def serve(self, model: LanguageModel) -> None:
        """Answer until a `KeyboardInterrupt`; a text in the making ends with its next token."""
        self.model = model
        try:
            with suppress(KeyboardInterrupt):
                self.serve_forever()
        finally:
            self.closing = True
            self.turn.acquire(timeout=10)  # the array library is at rest when Python ends

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that left is no error
            super().handle_error(request, client_address)


class _Refusal(Exception):
    """An answer that is an error of the request's."""

    def __init__(
        self, status: HTTPStatus, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class _Handler(BaseHTTPRequestHandler):
    """One connection, which is one request."""

    server: CompletionServer
    protocol_version = "HTTP/1.1"
    server_version = "mlx_pam"
    timeout = 30  # seconds for a client to go on sending or reading

    def do_GET(self) -> None:
        self._begun = False  # whether the status has been sent
        self._unread = True  # whether a body may be on the line
        try:
            self._answer()
        except _Refusal as refusal:
            self._refuse(refusal.status, str(refusal), refusal.param, refusal.code)
        except OSError:  # of the connection
            raise
        except Exception as error:  # the next request may fare better
            if not isinstance(error, MlxPamError):
                traceback.print_exc()
            text = str(error) if isinstance(error, MlxPamError) else "internal error, see its log"
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, text)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong with the line or the headers of a request."""
        self._begun = self._unread = False
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if path not in ROUTES:
            text = f"there is no path {path!r}; paths: {', '.join(ROUTES)}"
            raise _Refusal(HTTPStatus.NOT_FOUND, text)
        if self.command != ROUTES[path]:
            text = f"method must be {ROUTES[path]} at {path}, got {self.command}"
            raise _Refusal(HTTPStatus.METHOD_NOT_ALLOWED, text)
        if path == "/health":
            self._send({"status": "ok"})
        elif path == "/v1/models":
            model = {"id": self.server.model_id, "object": "model", "owned_by": "mlx_pam"}
            self._send({"object": "list", "data": [model]})
        else:
            self._complete(self._body())

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length")
        if length is None or "Transfer-Encoding" in self.headers:
            raise _Refusal(HTTPStatus.LENGTH_REQUIRED, "the header Content-Length is needed")
        if not (length.isascii() and length.isdecimal()):
            text = f"Content-Length must be a whole number >= 0, got {length!r}"
            raise _Refusal(HTTPStatus.BAD_REQUEST, text)
        if len(length) > 18 or int(length) > MOST_BYTES:
            text = f"the body must be at most {MOST_BYTES} bytes, got {length}"
            raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        data = self.rfile.read(int(length))
        self._unread = False
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            text = f"the body must be JSON in UTF-8: {error}"
            raise _Refusal(HTTPStatus.BAD_REQUEST, text) from None
        if not isinstance(body, dict):
            text = f"the body must be a JSON object, got {type(body).__name__}"
            raise _Refusal(HTTPStatus.BAD_REQUEST, text)
        return {name: value for name, value in body.items() if value is not None}

    def _complete(self, body: dict[str, Any]) -> None:
        try:
            pieces = self._pieces(body)
        except ConfigError as error:
            first = str(error).partition(" ")[0]
            param = first if first in FIELDS else None
            raise _Refusal(HTTPStatus.BAD_REQUEST, str(error), param) from None
        head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.server.model_id,
        }
        if body.get("stream"):
            self._begin(HTTPStatus.OK, {"Content-Type": "text/event-stream"})
        with self.server.turn:
            for piece in self._while_heard(pieces):
                if body.get("stream"):
                    self._event(head | {"choices": [_choice(piece)]})
        result = pieces.result()
        if body.get("stream"):
            self._event(head | {"choices": [_choice("", result)]} | _usage(result))
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            self._send(head | {"choices": [_choice(result.text, result)]} | _usage(result))

    def _pieces(self, body: dict[str, Any]) -> Stream:
        """The text to come; `ConfigError` if the request is wrong."""
        for name in body:
            require(name in FIELDS, f"field {name!r}", f"one of {', '.join(sorted(FIELDS))}", name)
        for name, neutral in NEUTRAL.items():
            value = body.get(name, neutral)
            require(value == neutral, name, f"absent or {neutral!r}: it is not offered", value)
        model = body.get("model", self.server.model_id)
        require(isinstance(model, str), "model", "a text", model)
        if model != self.server.model_id:
            text = f"model must be {self.server.model_id!r} or absent, got {model!r}"
            raise _Refusal(HTTPStatus.NOT_FOUND, text, "model", "model_not_found")
        streamed = body.get("stream", False)
        require(isinstance(streamed, bool), "stream", "a boolean", streamed)
        stop = body.get("stop", [])
        require(isinstance(stop, (str, list)), "stop", "a text or a list of texts", stop)
        prompt = body.get("prompt")
        is_ids = isinstance(prompt, list) and all(type(token) is int for token in prompt)
        is_prompt = isinstance(prompt, str) or is_ids
        require(is_prompt, "prompt", "a text or a list of token ids", prompt)
        settings = {name: body[name] for name in SETTINGS & body.keys()}
        return stream(self.server.model, prompt, **settings)

    def _while_heard(self, pieces: Stream) -> Iterator[str]:
        """The pieces, as long as somebody waits for them."""
        self._require_client()
        for piece in pieces:
            self._require_client()
            yield piece

    def _require_client(self) -> None:
        if self.server.closing:
            raise ConnectionAbortedError("the server is closing")
        line = select.poll()
        line.register(self.connection, select.POLLIN)
        if line.poll(0) and not self.connection.recv(1, socket.MSG_PEEK):
            raise ConnectionAbortedError("the client went away")

    def _refuse(
        self, status: HTTPStatus, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        error = {"message": message, "type": kind, "param": param, "code": code}
        if self._begun:
            self._event({"error": error})
            return
        allow = {"Allow": ROUTES[self.path.partition("?")[0]]} if status == 405 else {}
        self._send({"error": error}, status, allow)
        if self._unread:
            self._take_off_the_line()

    def _take_off_the_line(self) -> None:
        """Read what is left of a body: a connection closed before it would lose the answer."""
        self.connection.settimeout(1)
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            left = LEFT_UNREAD
            while left > 0 and (data := self.rfile.read1(1 << 16)):
                left -= len(data)

    def _send(
        self,
        record: dict[str, Any],
        status: HTTPStatus = HTTPStatus.OK,
        headers: dict[str, str] | None = None,
    ) -> None:
        data = json.dumps(record).encode()
        length = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        self._begin(status, length | (headers or {}))
        if self.command != "HEAD":
            self.wfile.write(data)

    def _begin(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Cache-Control": "no-store", "Connection": "close"}).items():
            self.send_header(name, value)
        self.end_headers()
        self._begun = True

    def _event(self, record: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(record)}\n\n".encode())


def _choice(text: str, result: Generation | None = None) -> dict[str, Any]:
    """Text and, in the last of them, why it ended; OpenAI has one word for a stop and the end."""
    reason = result and ("length" if result.finish_reason == "length" else "stop")
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": reason}


def _usage(result: Generation) -> dict[str, Any]:
    """What it took, and the seed that repeats it."""
    given, drawn = result.prompt_tokens, len(result.tokens)
    counts = {"prompt_tokens": given, "completion_tokens": drawn, "total_tokens": given + drawn}
    return {"usage": counts, "seed": result.seed}
