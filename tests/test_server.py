"""The HTTP server: what it answers is what `generate` writes, streamed or not, in its turn."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading

import pytest
from new_process import environment, mlx_pam
from scripted import ScriptedDecoder, saying, scripted, undecided
from serving import ask, events, exchange, serving
from tiny_models import random_checkpoint

from mlx_pam import generate, load
from mlx_pam.data.gpt2 import gpt2

SETTINGS = {
    "max_tokens": 12,
    "temperature": 0.9,
    "top_p": 0.8,
    "top_k": 30,
    "min_p": 0.01,
    "repetition_penalty": 1.3,
    "seed": 7,
}
LINE = " 相位联想 🦜🏳️‍🌈 é 完。"


def test_an_answer_is_what_generate_writes_streamed_or_not(backend, tmp_path) -> None:
    model = load(random_checkpoint(tmp_path / "model"), backend.name)
    expected = generate(model, "Once upon", **SETTINGS)
    with serving(model) as server:
        status, answer = ask(server, "/v1/completions", {"prompt": "Once upon", **SETTINGS})
        parts = events(server, prompt="Once upon", **SETTINGS)
        _, models = ask(server, "/v1/models")
    assert status == 200
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (expected.text, "length")
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 12, "total_tokens": 14}
    assert (answer["object"], answer["seed"]) == ("text_completion", 7)
    assert "".join(part["choices"][0]["text"] for part in parts) == expected.text
    assert len(parts) > 2
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
    assert parts[-1]["usage"] == answer["usage"]
    (listed,) = models["data"]
    assert listed["id"] == answer["model"] == parts[0]["model"]
    assert listed["id"].endswith("/model")


def test_streamed_characters_are_whole_and_a_stop_text_is_not_shown() -> None:
    tokens = len(gpt2().encode("Once"))
    with serving(saying(LINE, tokens)) as server:
        parts = [part["choices"][0] for part in events(server, prompt="Once")]
        _, stopped = ask(server, "/v1/completions", {"prompt": "Once", "stop": "完"})
        _, by_ids = ask(server, "/v1/completions", {"prompt": gpt2().encode("Once")})
    assert "".join(part["text"] for part in parts) == LINE
    assert len(parts) < len(gpt2().encode(LINE))
    assert all("\N{REPLACEMENT CHARACTER}" not in part["text"] for part in parts)
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["stop"]
    assert stopped["choices"][0]["text"] == LINE.partition("完")[0]
    assert by_ids["choices"][0]["text"] == LINE


def test_requests_at_once_are_answered_one_after_another() -> None:
    inside, most = 0, 0

    def next_logits(seen):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        logits = undecided(seen)
        inside -= 1
        return logits

    answers = {}
    model = scripted(next_logits)
    with serving(model) as server:

        def one(seed: int) -> None:
            body = {"prompt": "Once", "seed": seed, "max_tokens": 8}
            answers[seed] = ask(server, "/v1/completions", body)[1]["choices"][0]["text"]

        threads = [threading.Thread(target=one, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == 1
    model = scripted(undecided)
    assert answers == {s: generate(model, "Once", seed=s, max_tokens=8).text for s in range(4)}


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_ends_its_text_and_nothing_else(streamed, capfd) -> None:
    begun = threading.Event()

    def next_logits(seen):
        begun.set()
        return undecided(seen)

    body = {"prompt": "Once", "max_tokens": 10**9, "stream": streamed}
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data)
    with serving(scripted(next_logits)) as server:
        with socket.create_connection(("127.0.0.1", server.server_port)) as line:
            line.sendall(head + data)
            assert begun.wait(600)
        status, answer = ask(server, "/v1/completions", {"prompt": "Once", "max_tokens": 2})
    assert status == 200
    assert answer["choices"][0]["text"]
    assert "Traceback" not in capfd.readouterr().err


def test_a_client_that_leaves_ends_the_prefill_of_its_prompt() -> None:
    read, begun, left = [], threading.Event(), threading.Event()
    tokens, model = 30_000, scripted(undecided)

    class Waiting(ScriptedDecoder):
        def prefill(self, prompts, before_chunk=lambda: None):
            def chunk() -> None:
                read.append(None)
                if len(prompts[0]) == tokens:
                    begun.set()
                    assert left.wait(60)
                before_chunk()

            return super().prefill(prompts, chunk)

    model.backend.Decoder = lambda model, tokens: Waiting(model)
    data = json.dumps({"prompt": [5] * tokens}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data)
    with serving(model) as server:
        with socket.create_connection(("127.0.0.1", server.server_port)) as line:
            line.sendall(head + data)
            assert begun.wait(60)
        left.set()
        status, _ = ask(server, "/v1/completions", {"prompt": "Once", "max_tokens": 2})
    assert status == 200
    assert len(read) < tokens


def test_a_long_prompt_is_refused() -> None:
    with serving(scripted(undecided)) as server:
        server.max_prompt_tokens = 3
        status, answer = ask(server, "/v1/completions", {"prompt": [5] * 4})
        assert (status, answer["error"]["param"]) == (400, "prompt")
        assert "at most 3 tokens long, got '4 tokens'" in answer["error"]["message"]
        assert ask(server, "/v1/completions", {"prompt": [5] * 3, "max_tokens": 1})[0] == 200


def test_the_neutral_fields_of_widely_used_clients_are_accepted() -> None:
    neutral = {"logit_bias": {}, "suffix": "", "logprobs": None, "echo": False, "seed": -1,
               "top_k": -1, "stop": None, "n": 1, "user": "me"}  # fmt: skip
    greedy = {"temperature": 0, "max_tokens": 4}
    with serving(scripted(undecided)) as server:
        _, expected = ask(server, "/v1/completions", {"prompt": "Once", **greedy})
        ids = gpt2().encode("Once")
        for prompt in ("Once", ["Once"], ids, [ids]):
            status, answer = ask(server, "/v1/completions", {"prompt": prompt, **greedy, **neutral})
            assert status == 200, answer
            assert answer["choices"][0]["text"] == expected["choices"][0]["text"]
        parts = events(server, prompt="Once", stream_options={"include_usage": True}, **greedy)
    assert (parts[-1]["choices"], parts[-1]["usage"]) == ([], expected["usage"])
    assert parts[-2]["choices"][0]["finish_reason"] == "length"


def test_models_health_and_methods() -> None:
    model = scripted(undecided)
    with serving(model) as server:
        _, listed = ask(server, "/v1/models")
        (entry,) = listed["data"]
        assert set(entry) == {"id", "object", "created", "owned_by"}
        assert ask(server, f"/v1/models/{entry['id']}") == (200, entry)
        assert ask(server, "/v1/completions", {"prompt": "Once", "max_tokens": 1})[0] == 200
        _, health = ask(server, "/health")
        assert (health["status"], health["completions"]) == ("ready", 1)
        with server.turn:
            assert ask(server, "/health")[1]["status"] == "busy"
        assert exchange(server, "HEAD", "/v1/models", None, {}) == (200, b"")
        assert exchange(server, "OPTIONS", "/v1/completions", None, {}) == (204, b"")
    assert model.backend.threads_left >= 7  # each connection is a thread


def test_a_web_page_of_another_origin_is_refused() -> None:
    body = {"prompt": "Once", "max_tokens": 1}
    with serving(scripted(undecided)) as server:
        for allowed, status in ((None, 403), ("http://b", 403), ("http://a", 200), ("*", 200)):
            server.allow_origin = allowed
            got, _ = ask(server, "/v1/completions", body, headers={"Origin": "http://a"})
            assert got == status, allowed
        assert server.completions == 2


@pytest.mark.parametrize("origin", [None, "http://localhost:3000"])
def test_web_pages_read_the_answers_only_where_their_origin_is_allowed(origin) -> None:
    with serving(scripted(undecided)) as server:
        server.allow_origin = origin
        for method, path in (("OPTIONS", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/no")):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            connection.request(method, path)
            assert connection.getresponse().headers["Access-Control-Allow-Origin"] == origin
            connection.close()


def test_a_model_that_fails_is_an_error_and_the_next_request_is_answered(capfd) -> None:
    def next_logits(seen):
        if len(seen) > 2:
            raise ZeroDivisionError
        return undecided(seen)

    with serving(scripted(next_logits)) as server:
        many = {"prompt": "Once", "max_tokens": 5}
        status, answer = ask(server, "/v1/completions", many)
        assert (status, answer["error"]["type"]) == (500, "server_error")
        assert ask(server, "/v1/completions", many | {"max_tokens": 1})[0] == 200
    assert "ZeroDivisionError" in capfd.readouterr().err  # for whoever keeps the server


def test_control_c_ends_it_cleanly_and_its_port_is_its_own(tmp_path) -> None:
    folder = random_checkpoint(tmp_path / "model")
    words = ["-m", "mlx_pam", "serve", "--checkpoint", str(folder), "--backend", "mlx"]
    words += ["--host", "0.0.0.0", "--port", "0"]
    with subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        try:
            first = process.stdout.readline()
            port = first.partition("/v1/")[0].rpartition(":")[2]
            taken = mlx_pam(*words[2:-1], port)
        finally:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 0
    warning, last = errors.splitlines()
    assert warning.startswith(f"warning: http://0.0.0.0:{port} can be reached from other machines")
    assert last == "stopped"
    assert (taken.returncode, taken.stdout) == (1, "")
    assert taken.stderr.startswith(f"error: cannot listen on host 0.0.0.0, port {port}: ")
    assert taken.stderr.count("\n") == 1
