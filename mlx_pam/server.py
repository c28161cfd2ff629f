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
from urllib.parse import unquote

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
METHODS = {"GET": "GET, HEAD, OPTIONS", "POST": "POST, OPTIONS"}
"""Methods that a route answers, by its own."""
SETTINGS = {field.name for field in dataclasses.fields(GenerationConfig)} - {"logprobs"}
NEUTRAL: dict[str, Any] = {
    "n": 1, "best_of": 1, "echo": False, "frequency_penalty": 0, "presence_penalty": 0,
    "logit_bias": {}, "suffix": "",
}  # fmt: skip
"""Fields of OpenAI's that are not offered, and the value at which they ask for nothing."""
UNSET = {"seed": -1, "top_k": -1}
"""Values by which widely used clients say that a setting is not given: no seed, no filter."""
FIELDS = SETTINGS | {"prompt", "model", "stream", "stream_options", "user"} | set(NEUTRAL)


class CompletionServer(ThreadingHTTPServer):
    """Takes its port when it is made, so that a port in use is known before a model is loaded."""

    daemon_threads = True
    model: LanguageModel

    def __init__(
        self,
        host: str,
        port: int,
        max_prompt_tokens: int = 32768,
        allow_origin: str | None = None,
    ) -> None:
        """max_prompt_tokens: a longer prompt is refused. allow_origin: of the web pages that may
        read the answers, or "*" for all.
        """
        self.max_prompt_tokens, self.allow_origin = max_prompt_tokens, allow_origin
        self.started, self.completions = time.time(), 0
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

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.model.backend.leave_thread()

    def health(self) -> dict[str, Any]:
        """Whether the model is at work, and what it has done since the server started."""
        return {
            "status": "busy" if self.turn.locked() else "ready",
            "model": self.model_id,
            "backend": self.model.backend.description,
            "completions": self.completions,
            "uptime_s": round(time.time() - self.started, 1),
        }

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
        origin = self.headers.get("Origin")  # which browsers send, other clients do not
        if origin and self.server.allow_origin not in ("*", origin):
            text = f"web pages of {origin} are not allowed: serve with --allow-origin {origin}"
            raise _Refusal(HTTPStatus.FORBIDDEN, text)
        path, route = self._path(), self._route()
        if route is None:
            text = f"there is no path {path!r}; paths: {', '.join(ROUTES)}, /v1/models/ID"
            raise _Refusal(HTTPStatus.NOT_FOUND, text)
        if self.command == "OPTIONS":
            self._send_options(METHODS[route])
            return
        if self.command not in METHODS[route].split(", "):
            text = f"method must be one of {METHODS[route]} at {path}, got {self.command}"
            raise _Refusal(HTTPStatus.METHOD_NOT_ALLOWED, text)
        if path == "/health":
            self._send(self.server.health())
        elif path == "/v1/models":
            self._send({"object": "list", "data": [self._model()]})
        elif path != "/v1/completions":
            self._require_model("the model", unquote(path.removeprefix("/v1/models/")))
            self._send(self._model())
        else:
            self._complete(self._body())

    def _path(self) -> str:
        return self.path.partition("?")[0]

    def _route(self) -> str | None:
        """The method of the path, None if there is no such path."""
        path = self._path()
        return "GET" if path.startswith("/v1/models/") else ROUTES.get(path)

    def _model(self) -> dict[str, Any]:
        created = int(self.server.started)
        return {
            "id": self.server.model_id, "object": "model", "created": created,
            "owned_by": "mlx_pam",
        }  # fmt: skip

    def _require_model(self, name: str, model: str) -> None:
        if model != self.server.model_id:
            text = f"{name} must be {self.server.model_id!r}, got {model!r}"
            raise _Refusal(HTTPStatus.NOT_FOUND, text, "model", "model_not_found")

    def _send_options(self, methods: str) -> None:
        headers = {"Allow": methods, "Content-Length": "0"}
        if self.server.allow_origin:
            headers["Access-Control-Allow-Methods"] = methods
            headers["Access-Control-Allow-Headers"] = "Authorization, Content-Type"
        self._begin(HTTPStatus.NO_CONTENT, headers)

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
        self.server.completions += 1
        if body.get("stream"):
            self._event(head | {"choices": [_choice("", result)]} | _usage(result))
            if body.get("stream_options", {}).get("include_usage"):
                self._event(head | {"choices": []} | _usage(result))
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            self._send(head | {"choices": [_choice(result.text, result)]} | _usage(result))

    def _pieces(self, body: dict[str, Any]) -> Stream:
        """The text to come; `ConfigError` if the request is wrong."""
        for name in body.keys() - FIELDS:
            fields = ", ".join(sorted(FIELDS))
            text = f"{name} is not a supported field; fields: {fields}"
            raise _Refusal(HTTPStatus.BAD_REQUEST, text)
        for name, neutral in NEUTRAL.items():
            value = body.get(name, neutral)
            require(value == neutral, name, f"absent or {neutral!r}: it is not offered", value)
        model = body.get("model", self.server.model_id)
        require(isinstance(model, str), "model", "a text", model)
        self._require_model("model", model)
        streamed = body.get("stream", False)
        require(isinstance(streamed, bool), "stream", "a boolean", streamed)
        options = body.get("stream_options", {})
        known = isinstance(options, dict) and options.keys() <= {"include_usage"}
        rule = "an object with include_usage alone, a boolean"
        known = known and isinstance(options.get("include_usage", False), bool)
        require(known, "stream_options", rule, options)
        stop = body.get("stop", [])
        require(isinstance(stop, (str, list)), "stop", "a text or a list of texts", stop)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            require(len(prompt) == 1, "prompt", "a single one in a request", prompt)
            prompt = prompt[0]
        is_ids = isinstance(prompt, list) and all(type(token) is int for token in prompt)
        is_prompt = isinstance(prompt, str) or is_ids
        require(is_prompt, "prompt", "a text or a list of token ids", prompt)
        settings = {name: body[name] for name in SETTINGS & body.keys()}
        for name, unset in UNSET.items():
            if settings.get(name) == unset:
                settings[name] = GenerationConfig.seed if name == "seed" else 0
        pieces = stream(self.server.model, prompt, before_chunk=self._require_client, **settings)
        most, tokens = self.server.max_prompt_tokens, pieces.result().prompt_tokens
        require(tokens <= most, "prompt", f"at most {most:,} tokens long", f"{tokens:,} tokens")
        return pieces

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
        allow = {"Allow": METHODS[self._route()]} if status == 405 else {}
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
        if self.server.allow_origin:
            headers = headers | {"Access-Control-Allow-Origin": self.server.allow_origin}
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
