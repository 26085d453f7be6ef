"""Clients that people use: litellm and LangChain (the openai client is used everywhere else)."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tests.serve.conftest import QUESTION, receipt, user

OPTIONS = {"arr_coc": {"budget": "25%", "glance": "50%"}}


def test_litellm(address: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litellm = pytest.importorskip("litellm", reason="litellm is not installed")
        asked: dict[str, Any] = {
            "model": "openai/reader",
            "api_base": f"{address}/v1",
            "api_key": "none",
            "messages": user(QUESTION, receipt()),
            "extra_body": OPTIONS,
        }
        made = litellm.completion(**asked)
        assert made.choices[0].message.content == "18.20"
        assert made.usage.completion_tokens == 5
        pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True)]
        assert "".join(pieces) == "18.20"
        assert len([piece for piece in pieces if piece]) > 1
        with pytest.raises(litellm.BadRequestError, match="got 'lots'"):
            litellm.completion(**asked | {"extra_body": {"arr_coc": {"budget": "lots"}}})


def test_langchain(address: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chats = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
        messages = pytest.importorskip("langchain_core.messages")
        asked = [messages.HumanMessage(content=user(QUESTION, receipt())[0]["content"])]
        model = chats.ChatOpenAI(model="reader", base_url=f"{address}/v1", api_key="none", extra_body=OPTIONS)
        made = model.invoke(asked)
        assert made.content == "18.20"
        assert made.response_metadata["token_usage"]["visual_tokens"] == {"all": 150, "encoded": 75, "kept": 38}
        assert [chunk.content for chunk in model.stream(asked) if chunk.content] == list("18.20")
        assert [one.content for one in model.batch([asked, asked, asked])] == ["18.20"] * 3
