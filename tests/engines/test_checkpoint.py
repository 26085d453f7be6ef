"""Word embeddings and identity of a model, read from its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import arr_coc
from arr_coc import reader
from arr_coc.engines.checkpoint import INDEX, Checkpoint
from arr_coc.errors import LayerError
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.identity import config_for
from tests.adapters import families
from tests.training import squares

IDS = torch.tensor([40, 7, 40])


@pytest.mark.parametrize("family", families.QWEN)
def test_identity_and_word_embeddings_are_the_loaded_models(family: str, tmp_path: Path) -> None:
    model = families.shared_model(family)
    model.save_pretrained(tmp_path)
    adapter = families.adapter(model)
    layer = ArrCocLayer(config_for(adapter, **squares.SHAPE))
    checkpoint = Checkpoint(str(tmp_path))
    assert checkpoint.fit(layer) is layer
    assert torch.equal(checkpoint.embed(IDS), adapter.embed(IDS))
    assert checkpoint.embed(IDS[:0]).shape == (0, 32)


def test_older_names_and_several_files(tmp_path: Path) -> None:
    """Checkpoints before transformers 4.52 have other prefixes, and large ones are split."""
    weights = load_file(reader.WEIGHTS / "model.safetensors")
    assert any(name.startswith("model.language_model.") for name in weights)
    older = {
        name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): values
        for name, values in weights.items()
    }
    names = sorted(older)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in parts.items():
        save_file({name: older[name] for name in some}, tmp_path / file)
    index = {name: file for file, some in parts.items() for name in some}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": index}))
    shutil.copy(reader.WEIGHTS / "config.json", tmp_path)
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.fit(ArrCocLayer.from_pretrained(reader.WEIGHTS))
    assert torch.equal(checkpoint.embed(IDS).float(), arr_coc.load("reader", layer=None).adapter.embed(IDS))


def test_a_model_without_files(tmp_path: Path) -> None:
    with pytest.raises(
        LayerError, match=r"expected the files of .*nowhere.* to look for a layer: .*; set \"layer\" to null"
    ):
        Checkpoint(str(tmp_path / "nowhere"))


def test_weights_in_another_format_are_refused(tmp_path: Path) -> None:
    shutil.copy(reader.WEIGHTS / "config.json", tmp_path)
    with pytest.raises(
        LayerError, match=r"expected the weights .* for the layer, found 0: save the model as safetensors"
    ):
        Checkpoint(str(tmp_path)).fit(ArrCocLayer.from_pretrained(reader.WEIGHTS))
