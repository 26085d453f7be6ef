"""The public surface is typed: an editor completes every argument, and no function hides its options in `**options: Any`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import arr_coc
from arr_coc.vlm import VLM

FUNCTIONS = [VLM.ask, VLM.prepare, VLM.generate, VLM.stream, VLM.look, arr_coc.realize, arr_coc.evaluate, arr_coc.watch]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_every_argument_is_annotated_and_documented(function: Callable[..., Any]) -> None:
    assert inspect.getdoc(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        assert parameter.annotation is not parameter.empty, name
        if parameter.kind is parameter.VAR_KEYWORD:
            assert str(parameter.annotation).startswith("Unpack["), name


@pytest.mark.parametrize("function", [VLM.ask, VLM.prepare, VLM.generate], ids=lambda function: function.__qualname__)
@pytest.mark.parametrize("name", ["budget", "glance", "selector", "glance_selector", "allocation", "shared", "seed"])
def test_what_is_kept_is_an_explicit_argument(function: Callable[..., Any], name: str) -> None:
    assert inspect.signature(function).parameters[name].kind is inspect.Parameter.KEYWORD_ONLY


def test_wrapping_a_model_sets_nothing_on_its_adapter() -> None:
    vlm = arr_coc.load("reader")
    assert set(vars(vlm.adapter)) >= {"model", "image_processor", "batch_windows"}
    assert not {"layer", "codec", "medium", "embeddings"} & set(vars(vlm.adapter))
    assert vlm.layer is not None
    assert vlm.codec is None
