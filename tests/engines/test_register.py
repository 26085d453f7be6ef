"""The entry point that vLLM calls, with a stand-in for vLLM."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

import arr_coc.engines
from arr_coc.engines import VLLM_MODELS, register_vllm


def stand_in(version: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found: dict[str, str] = {}
    registry = SimpleNamespace(register_model=found.__setitem__)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(ModelRegistry=registry, __version__=version))
    return found


def test_the_registered_classes_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stand_in("0.32.1", monkeypatch)
    register_vllm()
    source = ast.parse((Path(arr_coc.engines.__file__).parent / "vllm.py").read_text())
    classes = {node.name for node in source.body if isinstance(node, ast.ClassDef)}
    assert set(found) == set(VLLM_MODELS)
    for place in found.values():
        module, name = place.split(":")
        assert module == "arr_coc.engines.vllm"
        assert name in classes


def test_another_version_of_vllm_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stand_in("0.33.0", monkeypatch)
    with pytest.warns(
        UserWarning, match=r"expected vLLM 0\.32\.\* for arr-coc, got 0\.33\.0: the option arr_coc has no effect"
    ):
        register_vllm()
    assert found == {}


def test_the_package_declares_the_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (place,) = project["entry-points"]["vllm.general_plugins"].values()
    assert EntryPoint("arr_coc", place, "vllm.general_plugins").load() is register_vllm
