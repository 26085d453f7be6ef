"""The endpoint over HTTP, through the openai client and by hand."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from arr_coc.serve.limits import EndpointLimits
from arr_coc.serve.settings import Selection, ServeSettings
from arr_coc.vlm.model import VLM
from tests.serve.conftest import QUESTION, ScriptedModel, client, data_uri, receipt, running, user, wait_until

TEXT = [{"role": "user", "content": "What?"}]


def test_the_model_is_listed(address: str) -> None:
    models = client(address).models
    assert [model.id for model in models.list()] == ["reader"]
    assert models.retrieve("reader").id == "reader"
    with pytest.raises(openai.NotFoundError, match="expected the model 'reader', got 'other/one'"):
        models.retrieve("other/one")


def test_an_answer_with_its_usage(address: str, reader: VLM) -> None:
    """It is the answer of `ask` with the same options."""
    asked = reader.ask(receipt(), QUESTION, budget="25%", glance="50%")
    made = client(address).chat.completions.create(
        model="reader",
        messages=user(QUESTION, receipt()),  # type: ignore[arg-type]
        extra_body={"arr_coc": {"budget": "25%", "glance": "50%"}},
    )
    assert (made.choices[0].message.content, made.choices[0].finish_reason) == ("18.20", "stop")
    assert made.usage
    assert made.usage.model_dump()["visual_tokens"] == asked.tokens
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (asked.prompt_tokens, len(asked.ids))
    details = made.model_dump()["arr_coc"]
    assert details["fallback"] == ""
    assert details["timings_ms"].keys() >= {"encode", "prefill", "decode"}


def test_several_images_and_earlier_turns(address: str, reader: VLM) -> None:
    talk: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        *user(QUESTION, receipt("7.35")),
        {"role": "assistant", "content": "7.35", "refusal": None},
        *user(QUESTION, receipt("96.04")),
    ]
    made = client(address).chat.completions.create(model="reader", messages=talk)
    own = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "image", "image": receipt("7.35")}, {"type": "text", "text": QUESTION}]},
        {"role": "assistant", "content": [{"type": "text", "text": "7.35"}]},
        {"role": "user", "content": [{"type": "image", "image": receipt("96.04")}, {"type": "text", "text": QUESTION}]},
    ]
    (same,) = reader.generate(messages=own)
    assert made.choices[0].message.content == same.text
    assert made.usage
    assert made.usage.model_dump()["visual_tokens"] == same.tokens
    assert len(same.allocations) == 2


def test_tokens_are_streamed_while_the_model_runs() -> None:
    """The model waits until the client has read the letter before: nothing is sent at the end only."""
    read: list[str] = []
    model = ScriptedModel("hello", lambda step: wait_until(lambda: len(read) >= step))
    with running(model) as (address, _, _):
        stream = client(address).chat.completions.create(
            model="reader", messages=TEXT, stream=True, stream_options={"include_usage": True}  # type: ignore[arg-type, call-overload]
        )  # fmt: skip
        chunks = []
        for chunk in stream:
            chunks.append(chunk)
            if chunk.choices and chunk.choices[0].delta.content:
                read.append(chunk.choices[0].delta.content)
    assert read == list("hello")
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-2:] == [None, "stop"]
    assert chunks[-1].usage.completion_tokens == 5
    assert len({chunk.id for chunk in chunks}) == 1


def post(address: str, body: Any, **options: Any) -> httpx.Response:
    return httpx.post(f"{address}/v1/chat/completions", json=body, timeout=30, **options)


ASKED = {"model": "reader", "messages": TEXT}


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": None}, 400, "model: expected a valid string"),
        ({"model": "gpt-4o"}, 404, "expected the model 'reader', got 'gpt-4o'"),
        ({"messages": []}, 400, "messages: "),
        ({"messages": "hello"}, 400, "messages: expected a valid list"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages.0.role: expected 'system'"),
        ({"messages": [{"role": "user", "content": None}]}, 400, "messages.0.content: expected a valid list"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, 400, "'text', 'image_url'"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "expected a question as the last message"),
        ({"messages": user("x" * 201)}, 400, "at most 200 letters of text, got 201"),
        ({"messages": user("x", *[receipt()] * 4)}, 400, "at most 3 images, got 4"),
        ({"messages": user("x", receipt().resize((1200, 1000)), receipt().resize((1000, 1000)))}, 400, "2.2 in all"),
        ({"messages": user("x", "http://127.0.0.1/a.png")}, 400, "expected image 1 as data:"),
        ({"messages": user("x", receipt(), "data:image/png;base64,QUJD")}, 400, "image 2 is not an image"),
        ({"messages": user("x", data_uri(receipt())[:-1000])}, 400, "image 1 is corrupt or truncated"),
        ({"messages": user("<|image_pad|>")}, 400, "the prompt has places for 1 images"),
        ({"max_tokens": 0}, 400, "max_tokens: expected greater than or equal to 1"),
        ({"max_tokens": 65}, 400, "max_tokens of at most 64, got 65"),
        ({"temperature": -1}, 400, "temperature: expected greater than or equal to 0"),
        ({"top_p": 0}, 400, "top_p: "),
        ({"stop": ["a"] * 5}, 400, "stop: "),
        ({"stop": ""}, 400, "stop.0: "),
        ({"n": 2}, 400, "n is not supported"),
        ({"tools": [{"type": "function"}]}, 400, "tools is not supported"),
        ({"logprobs": True}, 400, "logprobs is not supported"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format is not supported"),
        ({"budget": "25%"}, 400, "budget: unknown field"),
        ({"arr_coc": {"buget": "25%"}}, 400, "arr_coc.buget: unknown field"),
        ({"arr_coc": {"budget": "lots"}}, 400, "got 'lots'"),
        ({"arr_coc": {"budget": [1]}}, 400, "got [1]"),
        ({"arr_coc": {"budget": 0.25}}, 400, 'so write "25%"'),
        ({"arr_coc": {"glance": -1}}, 400, "got -1"),
        ({"arr_coc": {"selector": "psychic"}}, 400, "got 'psychic'"),
        ({"arr_coc": {"selector": "os:system"}}, 400, "got 'os:system'"),  # would import a module
        ({"arr_coc": {"selector": "coupling", "budget": "25%"}, "messages": user("x", receipt())}, 400, "embeddings"),
    ],
)
def test_bad_requests_are_openais_error_with_one_sentence(
    address: str, change: dict[str, Any], status: int, message: str
) -> None:
    response = post(address, ASKED | change)
    error = response.json()["error"]
    assert (response.status_code, set(error)) == (status, {"message", "type", "param", "code"})
    assert message in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (json.dumps(ASKED).encode(), "text/plain", 415),  # what a page of another site could send
    ],
)
def test_other_bodies_are_refused(address: str, body: bytes, kind: str, status: int) -> None:
    response = httpx.post(f"{address}/v1/chat/completions", content=body, headers={"Content-Type": kind})
    assert response.status_code == status
    assert response.json()["error"]["message"].startswith("expected")


@pytest.mark.parametrize("path", ["/", "/v1/completions", "/v1/embeddings", "/docs", "/openapi.json"])
def test_other_paths_are_refused(address: str, path: str) -> None:
    response = httpx.get(address + path)
    assert response.status_code == 404
    assert "expected /v1/models or POST /v1/chat/completions" in response.json()["error"]["message"]


def test_harmless_fields_are_accepted(address: str) -> None:
    harmless = {
        "user": "me",
        "n": 1,
        "tools": [],
        "logprobs": False,
        "response_format": {"type": "text"},
        "store": None,
    }
    assert post(address, ASKED | harmless | {"max_tokens": 1}).status_code == 200


def test_a_key_is_needed_where_one_is_set() -> None:
    with running(ScriptedModel(), ServeSettings(api_key="s3cret")) as (address, _, _):
        for key in ("wrong", "s3cre", "é"):
            response = post(address, ASKED, headers={"Authorization": f"Bearer {key}".encode()})
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        assert httpx.get(f"{address}/v1/models").status_code == 401
        assert httpx.get(f"{address}/health").status_code == 200
        made = client(address, "s3cret").chat.completions.create(model="reader", messages=TEXT)  # type: ignore[arg-type]
        assert made.choices[0].message.content == "hello"


def test_the_model_reads_the_servers_share_unless_a_request_says(reader: VLM) -> None:
    with running(reader, ServeSettings(selection=Selection("25%", "all", "uniform"))) as (address, _, _):
        body = {"model": "reader", "messages": user(QUESTION, receipt()), "max_tokens": 1}
        for options, kept in (({}, 38), ({"budget": 10}, 10)):
            visual = post(address, body | {"arr_coc": options}).json()["usage"]["visual_tokens"]
            assert visual == {"all": 150, "encoded": 150, "kept": kept}


def test_an_error_of_the_model_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with running(ScriptedModel()) as (address, _, _):
        response = post(address, ASKED | {"messages": user("broken")})
        assert response.status_code == 500
        assert "secret" not in response.text
        assert post(address, ASKED).status_code == 200  # the thread goes on
    assert "a secret of the server" in caplog.text  # in the log


def test_metrics_count_requests_and_tokens() -> None:
    with running(ScriptedModel()) as (address, _, _):
        assert post(address, ASKED).status_code == 200
        assert post(address, {}).status_code == 400
        shown = httpx.get(f"{address}/metrics")
    assert shown.headers["content-type"].startswith("text/plain")
    for line in (
        'arr_coc_requests_total{status="200"} 1.0',
        'arr_coc_requests_total{status="400"} 1.0',
        'arr_coc_tokens_total{kind="answer"} 5.0',
        "arr_coc_waiting 0.0",
        "arr_coc_cancelled_total 0.0",
    ):
        assert f"\n{line}\n" in shown.text


def test_a_full_queue_is_429_with_a_time() -> None:
    opened = threading.Event()
    model = ScriptedModel(gate=lambda step: opened.wait(20))
    with running(model, ServeSettings(limits=EndpointLimits(queue=1, batch=1))) as (address, _, engine):
        with _background(address, 2):
            wait_until(lambda: engine.metrics.registry.get_sample_value("arr_coc_waiting") == 1)
            refused = post(address, ASKED)
            assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
            assert int(refused.headers["retry-after"]) >= 1
            opened.set()
        # The openai client waits as long as the server says, and tries again.
        assert openai.OpenAI(base_url=f"{address}/v1", api_key="x").chat.completions.create(**ASKED).choices  # type: ignore[call-overload]


@contextmanager
def _background(address: str, count: int) -> Iterator[list[httpx.Response]]:
    """Requests in threads; all are answered at the end of the block."""
    responses: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: responses.append(post(address, ASKED))) for _ in range(count)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    yield responses
    for thread in threads:
        thread.join(20)
    assert [response.status_code for response in responses] == [200] * count


@pytest.mark.parametrize("declared", [True, False])
def test_a_huge_body_is_refused_before_it_is_read(declared: bool) -> None:
    limits = EndpointLimits(megabytes=0.1, images=1)
    with running(ScriptedModel(), ServeSettings(limits=limits)) as (address, _, _):
        size = 0

        def body() -> Iterator[bytes]:
            nonlocal size
            for _ in range(3000):
                size += 65536
                yield b"x" * 65536

        headers = {"Content-Type": "application/json"} | ({"Content-Length": str(3000 * 65536)} if declared else {})
        try:
            response = httpx.post(f"{address}/v1/chat/completions", content=body(), headers=headers)
            assert response.status_code == 413
            assert "expected a request of at most 0.263 MB" in response.json()["error"]["message"]
        except httpx.TransportError:  # the server closed the connection while the client was sending
            pass
        assert size < 100e6
        assert post(address, ASKED).status_code == 200


def raw(address: str, data: bytes) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)), 20)
    made.sendall(data)
    return made


def head(length: int) -> bytes:
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def test_a_slow_client_is_given_up_and_others_are_served() -> None:
    with running(ScriptedModel(), ServeSettings(limits=EndpointLimits(seconds=0.5))) as (address, _, _):
        slow = raw(address, head(500) + b'{"model"')
        assert post(address, ASKED).status_code == 200
        answer = b"".join(iter(lambda: slow.recv(4096), b""))  # the head and the body may come apart
        slow.close()
    assert b" 408 " in answer
    assert b"within 0.5 seconds" in answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_the_model(stream: bool) -> None:
    model = ScriptedModel("x" * 500, lambda step: time.sleep(0.01))
    with running(model) as (address, _, engine):
        body = json.dumps(ASKED | {"stream": stream}).encode()
        leaving = raw(address, head(len(body)) + body)
        wait_until(lambda: model.steps > 2)
        leaving.close()
        wait_until(lambda: engine.metrics.registry.get_sample_value("arr_coc_cancelled_total") == 1)
        wait_until(lambda: engine.metrics.registry.get_sample_value("arr_coc_running") == 0)
        assert model.steps < 300
        assert engine._held == 0


def test_a_client_that_leaves_during_its_body_is_forgotten() -> None:
    with running(ScriptedModel()) as (address, _, engine):
        raw(address, head(500) + b'{"model"').close()
        value = engine.metrics.registry.get_sample_value
        wait_until(lambda: value("arr_coc_requests_total", {"status": "499"}) == 1)
        assert post(address, ASKED).status_code == 200


def test_a_stop_finishes_what_was_accepted() -> None:
    opened = threading.Event()
    model = ScriptedModel(gate=lambda step: opened.wait(20))
    with running(model, ServeSettings(limits=EndpointLimits(batch=1))) as (address, server, engine):
        with _background(address, 2) as responses:
            wait_until(lambda: engine.metrics.registry.get_sample_value("arr_coc_waiting") == 1)
            server.should_exit = True  # what a signal does
            wait_until(lambda: engine.stopping)
            opened.set()
        assert [response.json()["choices"][0]["message"]["content"] for response in responses] == ["hello"] * 2


def test_a_stop_refuses_what_takes_longer_than_the_grace_period() -> None:
    model = ScriptedModel("x" * 500, lambda step: time.sleep(0.02))
    with running(model, ServeSettings(limits=EndpointLimits(batch=1), grace=0.2)) as (address, server, engine):
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(post(address, ASKED)))
        streaming = threading.Thread(target=lambda: found.append(post(address, ASKED | {"stream": True}).text))
        streaming.start()
        wait_until(lambda: model.steps > 1)
        asking.start()
        wait_until(lambda: engine.metrics.registry.get_sample_value("arr_coc_waiting") == 1)
        server.should_exit = True
        asking.join(20)
        streaming.join(20)
    response, text = sorted(found, key=lambda one: isinstance(one, str))
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert '"content":"x"' in text
    assert "the server is stopping" in text
    assert "[DONE]" not in text
