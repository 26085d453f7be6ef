"""Model folders are loaded without torchvision; folders that cannot be loaded are refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

import arr_coc
from arr_coc.adapters.families import FAMILIES
from arr_coc.errors import ModelError
from recipes.reader import folder
from recipes.reader.model import TINY, build
from tests.adapters.tiny_vlm import FLAT, picture, wrapped


def test_a_reader_s_folder_is_loaded_without_torchvision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder.write(build(TINY), tmp_path, torch.float32)
    vlm = arr_coc.load(tmp_path)
    answer = vlm.ask(picture(200, 100), "What?", budget="50%", max_new_tokens=3)
    assert answer.tokens["kept"] == -(-answer.tokens["all"] // 2)
    video = vlm.generate(None, "What?", videos=[[picture(64, 64, i) for i in range(3)]], max_new_tokens=3)[0]
    assert video.allocation.kind == "video"
    assert video.allocation.grid.views[0].t == 2
    assert arr_coc.load(str(tmp_path), dtype=torch.bfloat16).model.dtype == torch.bfloat16


@pytest.mark.parametrize("family", FLAT)
def test_a_folder_is_loaded_without_torchvision(family: str, tmp_path: Path) -> None:
    vlm = wrapped(family)
    vlm.model.save_pretrained(tmp_path)
    stored = vlm.processor
    stored.tokenizer.save_pretrained(tmp_path)
    stored.image_processor.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(stored.chat_template)
    plain = {
        name: value
        for name, value in vars(stored).items()
        if isinstance(value, int | str) and name not in ("chat_template", "audio_tokenizer")
    }
    (tmp_path / "processor_config.json").write_text(json.dumps(plain))
    loaded = arr_coc.load(tmp_path)
    options = {"budget": 5, "max_new_tokens": 3, "do_sample": False}
    assert loaded.ask(picture(90, 40), "What?", **options).ids.equal(vlm.ask(picture(90, 40), "What?", **options).ids)
    if family == "llava_onevision":
        film = loaded.generate(None, "What?", videos=[[picture(), picture()]], max_new_tokens=2)[0]
        assert str(film.allocation.grid) == "2 x 2 x 2"


@pytest.mark.parametrize("known", FAMILIES, ids=lambda known: known.family)
def test_every_family_names_its_processor(known: Any) -> None:
    named = {PROCESSOR_MAPPING_NAMES[kind] for kind in known.model_types if PROCESSOR_MAPPING_NAMES.get(kind)}
    assert named <= {known.processor}
    assert hasattr(transformers, known.processor)


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "a/b/c"])
def test_a_folder_that_is_not_there(name: str) -> None:
    with pytest.raises(ModelError, match="not a folder"):
        arr_coc.load(name)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot load"):
        arr_coc.load(tmp_path)


def test_a_folder_of_another_kind_of_model(tmp_path: Path) -> None:
    transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"'gpt2' is not supported .*Qwen2-VL"):
        arr_coc.load(tmp_path)


def test_code_in_a_model_folder_runs_only_when_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with `auto_map` brings Python code. There is no prompt: without trust_remote_code it does not run."""
    torch.manual_seed(0)
    folder.write(build(TINY), tmp_path, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    mark = tmp_path / "ran"
    (tmp_path / "own.py").write_text(
        f"from transformers import Qwen2VLConfig\nopen({str(mark)!r}, 'w').close()\nclass Own(Qwen2VLConfig):\n    pass\n"
    )
    config["auto_map"] = {"AutoConfig": "own.Own"}
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert arr_coc.load(tmp_path).ask(picture(64, 64), "What?", max_new_tokens=1)  # the family's own class
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "own"}))
    with pytest.raises(ModelError, match="cannot load"):
        arr_coc.load(tmp_path)
    assert not mark.exists()
