"""H20: bad requests get a JSON error each, and a good one after them is answered."""

from __future__ import annotations

import http.client

import pytest
from serving import ask, serving
from tiny_models import random_checkpoint

from mlx_pam import load
from mlx_pam.server import MOST_BYTES

COMPLETIONS = "/v1/completions"
BAD_BODIES = [
    (b"{not json", 400, None),
    (b"\xff\xfe", 400, None),
    (b"[" * 200_000, 400, None),
    (b"", 400, None),
    ([1, 2], 400, None),
    ("text", 400, None),
    ({}, 400, "prompt"),
    ({"prompt": 5}, 400, "prompt"),
    ({"prompt": ["two", "texts"]}, 400, "prompt"),
    ({"prompt": [-1]}, 400, None),
    ({"prompt": "a", "temperature": "hot"}, 400, "temperature"),
    (b'{"prompt": "a", "temperature": NaN}', 400, "temperature"),
    ({"prompt": "a", "max_tokens": -1}, 400, "max_tokens"),
    ({"prompt": "a", "max_tokens": True}, 400, "max_tokens"),
    ({"prompt": "a", "top_p": 2}, 400, "top_p"),
    ({"prompt": "a", "seed": 1.5}, 400, "seed"),
    ({"prompt": "a", "stop": 5}, 400, "stop"),
    ({"prompt": "a", "stop": [""]}, 400, "stop"),
    ({"prompt": "a", "stream": "yes"}, 400, "stream"),
    ({"prompt": "a", "n": 2}, 400, "n"),
    ({"prompt": "a", "temprature": 1}, 400, None),
    ({"prompt": [["a"]]}, 400, "prompt"),
    ({"prompt": [[1], [2]]}, 400, "prompt"),
    ({"prompt": [True]}, 400, "prompt"),
    ({"prompt": "a", "seed": -2}, 400, "seed"),
    ({"prompt": "a", "logprobs": 1}, 400, None),
    ({"prompt": "a", "logit_bias": {"5": 1}}, 400, "logit_bias"),
    ({"prompt": "a", "suffix": "b"}, 400, "suffix"),
    ({"prompt": "a", "stream_options": True}, 400, "stream_options"),
    ({"prompt": "a", "stream_options": {"include_usage": 1}}, 400, "stream_options"),
    ({"prompt": "a", "model": "another"}, 404, "model"),
    (b" " * (MOST_BYTES + 1), 413, None),
]


def test_bad_requests_are_refused_in_json_and_a_good_one_is_answered(backend, tmp_path) -> None:
    model = load(random_checkpoint(tmp_path / "model"), backend.name)
    with serving(model) as server:

        def refused(status: int, path: str = COMPLETIONS, *body: object, **way: object) -> dict:
            got, answer = ask(server, path, *body, **way)
            assert got == status, (path, body, answer)
            assert set(answer) == {"error"}
            assert set(answer["error"]) == {"message", "type", "param", "code"}
            assert answer["error"]["message"]
            assert answer["error"]["type"] == "invalid_request_error"
            return answer["error"]

        for body, status, param in BAD_BODIES:
            assert refused(status, COMPLETIONS, body)["param"] == param, body
        refused(404, "/v1/chat/completions", {"prompt": "a"})
        refused(404, "/")
        refused(404, "ftp://[")
        refused(405, COMPLETIONS)
        refused(404, "/v1/models/another")
        refused(405, "/health", {"prompt": "a"})
        refused(405, COMPLETIONS, b"", method="DELETE")
        refused(411, COMPLETIONS, b"", headers={"Transfer-Encoding": "chunked"})
        refused(400, COMPLETIONS, b"", headers={"Content-Length": "-1"})
        good = {"prompt": "Once", "max_tokens": 5, "model": server.model_id}
        status, answer = ask(server, COMPLETIONS, good)
    assert status == 200
    assert answer["choices"][0]["text"]


@pytest.mark.parametrize(("method", "status"), [("POST", 411), ("BREW", 501), ("HEAD", 405)])
def test_a_request_without_a_length_or_with_a_strange_method(tmp_path, method, status) -> None:
    with serving(load(random_checkpoint(tmp_path / "model"))) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
        connection.putrequest(method, COMPLETIONS)
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == status
        assert answer.headers["Content-Type"] == "application/json"
        assert ask(server, "/health")[1]["status"] == "ready"
        connection.close()
