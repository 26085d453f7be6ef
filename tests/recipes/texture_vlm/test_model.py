"""Reading from k dimensions of the texture: what it is equal to, what it changes, what it keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import arr_coc
from arr_coc.embedding.projection import Projection
from arr_coc.errors import ChannelError, ProjectionError
from arr_coc.selectors import Choice, SelectionInput
from arr_coc.types.grid import Grid, Mosaic
from recipes.texture_vlm.model import EmbeddingPlanes, Lift, TextureEmbeddingVLM, encoder_identity, token_rows
from tests.adapters import families, tiny_vlm
from tests.adapters.tiny_vlm import picture

QWEN = families.QWEN
FAMILIES = [*QWEN, "llava", "llava_next"]
QUESTION = "What is this?"


@lru_cache
def wrapped(family: str) -> Any:
    if family in QWEN:
        return arr_coc.wrap(families.model(family), tiny_vlm.processor(family))
    return tiny_vlm.build(family)


@pytest.fixture(params=FAMILIES)
def vlm(request: Any) -> Any:
    return wrapped(request.param)


@lru_cache
def fitted(family: str, dims: int, hidden: int = 0) -> TextureEmbeddingVLM:
    torch.manual_seed(0)
    return TextureEmbeddingVLM.fit(wrapped(family), [picture(72, 56, seed) for seed in range(4)], dims, hidden)


def family_of(vlm: Any) -> str:
    return next(family for family in FAMILIES if wrapped(family) is vlm)


def unchanged(vlm: Any) -> Projection:
    """All dimensions, each its own component."""
    width = vlm.model.get_input_embeddings().weight.shape[1] * (1 + vlm.adapter.deep_layers)
    identity = encoder_identity(vlm.model, vlm.adapter.text_model)
    zero, one = torch.zeros(width), torch.eye(width)
    return Projection(identity, one, one, zero, zero, torch.full((width,), 1 / width))


def logits(reader: Any, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        return reader.model(**reader.prepare(picture(), QUESTION, **options)).logits


@contextmanager
def features_replaced(vlm: Any, change: Any) -> Iterator[None]:
    """Inside, the stock model's encoder hands on `change` of what it made, row by row."""

    def qwen(module: Any, args: Any, answer: Any) -> Any:
        deep = tuple(getattr(answer, "deepstack_features", None) or ())
        parts = change(torch.cat([answer.pooler_output, *deep], -1)).chunk(1 + len(deep), -1)
        answer.pooler_output = parts[0]
        if deep:
            answer.deepstack_features = list(parts[1:])
        return answer

    core = vlm.model.model
    if hasattr(core, "visual"):
        handle = core.visual.register_forward_hook(qwen)
    else:
        handle = core.multi_modal_projector.register_forward_hook(
            lambda module, args, answer: change(answer.flatten(0, -2)).view(answer.shape)
        )
    try:
        yield
    finally:
        handle.remove()


def stock_logits(vlm: Any) -> torch.Tensor:
    """Of transformers alone, on the processor's own inputs."""
    message = {"role": "user", "content": [{"type": "image", "image": picture()}, {"type": "text", "text": QUESTION}]}
    inputs = vlm.processor.apply_chat_template(
        [message], tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
    )
    with torch.no_grad():
        return vlm.model(**inputs).logits


def test_all_dimensions_as_they_are_is_the_wrapped_model_bit_for_bit(vlm: Any) -> None:
    reader = TextureEmbeddingVLM(vlm, unchanged(vlm))
    assert torch.equal(logits(reader.vlm), logits(vlm))
    assert torch.equal(logits(reader.vlm), stock_logits(vlm))
    assert torch.equal(logits(reader.vlm, budget=5), logits(vlm, budget=5))
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    assert (
        reader.ask(picture(), QUESTION, **options).ids.tolist() == vlm.ask(picture(), QUESTION, **options).ids.tolist()
    )


def test_all_principal_components_lose_nothing() -> None:
    vlm = wrapped("qwen2_vl")
    full = fitted("qwen2_vl", vlm.model.get_input_embeddings().weight.shape[1])
    torch.testing.assert_close(logits(full.vlm), logits(vlm), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("hidden", [0, 24])
def test_untrained_it_is_the_stock_model_on_reconstructed_features(vlm: Any, hidden: int) -> None:
    reader = fitted(family_of(vlm), 6, hidden)
    projection = reader.projection
    with features_replaced(vlm, lambda rows: projection.reconstruct(projection.transform(rows))):
        truth = stock_logits(vlm)
    mine = logits(reader.vlm)
    torch.testing.assert_close(mine, truth, atol=2e-5, rtol=1e-4)
    # Else the comparison would say nothing: six dimensions are not all, nor are five.
    assert (mine - stock_logits(vlm)).abs().max() > 1e-2
    assert (logits(TextureEmbeddingVLM(vlm, projection.first(5)).vlm) - truth).abs().max() > 1e-3


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "qwen3_vl"])
def test_kept_cells_are_read_at_their_own_positions(family: str) -> None:
    """As a selector that replaces tokens by reconstructed ones has it read, in the wrapped model."""
    vlm, reader = wrapped(family), fitted(family, 6)
    projection, keep = reader.projection, torch.tensor([0, 3, 4, 9])

    def replaced(selection: SelectionInput) -> Choice:
        assert selection.tokens is not None
        return Choice(keep, features=projection.reconstruct(projection.transform(selection.tokens))[keep])

    truth = logits(vlm, budget=4, selector=replaced)
    torch.testing.assert_close(logits(reader.vlm, allocation=keep), truth, atol=2e-5, rtol=1e-4)
    assert (logits(reader.vlm, allocation=keep + 1) - truth).abs().max() > 1e-3
    answers = [reader.ask(picture(), QUESTION, keep=one, max_new_tokens=3) for one in (keep, keep.numpy(), 4, "25%")]
    assert [answer.allocation.keep.tolist() for answer in answers[:2]] == [keep.tolist()] * 2
    assert answers[2].tokens["kept"] == 4
    assert 0 < answers[3].tokens["kept"] < answers[3].tokens["all"]


def test_a_glance_stores_what_was_encoded() -> None:
    reader = fitted("qwen2_vl", 6)
    answer = reader.ask(picture(), QUESTION, keep="all", glance=7, max_new_tokens=2)
    assert answer.tokens["encoded"] == answer.tokens["kept"] == 7


def test_several_pictures_and_a_video() -> None:
    vlm = wrapped("qwen2_vl")
    reader = TextureEmbeddingVLM(vlm, unchanged(vlm))
    film = [picture(48, 40, seed) for seed in range(4)]
    shown = {"images": [picture(), picture(50, 77, 1)], "videos": [film], "text": QUESTION, "budget": "50%"}
    with torch.no_grad():
        assert torch.equal(vlm.model(**reader.vlm.prepare(**shown)).logits, vlm.model(**vlm.prepare(**shown)).logits)


def test_a_look_is_encoded_once_and_keeps_the_few_dimensions() -> None:
    vlm, reader = wrapped("qwen2_vl"), fitted("qwen2_vl", 6)
    runs: list[int] = []
    encoder = vlm.model.model.visual
    handle = encoder.register_forward_hook(lambda *_: runs.append(1))
    seen = reader.look(picture())
    [planes] = reader.planes(seen)
    answers = [
        reader.ask(seen, q, max_new_tokens=3, do_sample=False).ids.tolist() for q in (QUESTION, "Who?", QUESTION)
    ]
    assert len(runs) == 1
    assert answers[0] == answers[2] == reader.ask(picture(), QUESTION, max_new_tokens=3, do_sample=False).ids.tolist()
    [kept] = [one for encoding in seen.encoded.values() for one in encoding.tokens]
    assert kept.tokens.shape == (planes.grid.n, 6)
    assert planes.planes[0].shape == (6, planes.grid.h, planes.grid.w)
    runs.clear()
    # The wrapped model may use the same look: it finds its own tokens, not these.
    with torch.no_grad():
        assert torch.equal(
            vlm.model(**vlm.prepare(look=seen, text=QUESTION)).logits,
            logits(vlm),
        )
        assert torch.equal(vlm.model(**reader.vlm.prepare(look=seen, text=QUESTION)).logits, logits(reader.vlm))
    handle.remove()


def test_a_conversation_goes_on() -> None:
    vlm, options = wrapped("qwen2_vl"), {"max_new_tokens": 4, "do_sample": False}
    reader = TextureEmbeddingVLM(vlm, unchanged(vlm))
    said = []
    for one in (reader.vlm, vlm):
        first = one.ask(picture(), QUESTION, budget=6, remember=True, **options)
        said.append(one.ask(None, "And?", after=first, **options).ids.tolist())
    assert said[0] == said[1]


def test_training_the_lift_shows_in_a_look_that_is_kept() -> None:
    vlm = wrapped("qwen2_vl")
    reader = TextureEmbeddingVLM(vlm, fitted("qwen2_vl", 6).projection)
    seen = reader.look(picture())
    with torch.no_grad():
        before = vlm.model(**reader.vlm.prepare(look=seen, text=QUESTION)).logits
        reader.lift.linear.weight.mul_(2)
        after = vlm.model(**reader.vlm.prepare(look=seen, text=QUESTION)).logits
    assert (after - before).abs().max() > 1e-2


def test_gradients_reach_every_weight_of_the_lift_and_stop_at_the_texture() -> None:
    vlm = arr_coc.wrap(families.model("qwen3_vl"), tiny_vlm.processor("qwen3_vl"))
    torch.manual_seed(0)
    reader = TextureEmbeddingVLM.fit(vlm, [picture(72, 56, seed) for seed in range(4)], 6, hidden=8)
    vlm.adapter.text_model.requires_grad_(False)
    vlm.model.get_output_embeddings().requires_grad_(False)
    encoder = list(vlm.model.model.visual.parameters())
    assert all(parameter.requires_grad for parameter in encoder)
    prepared = reader.vlm.prepare(picture(), QUESTION, gradients=True)
    vlm.model(**prepared).logits[:, -1].logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in reader.lift.parameters())
    assert all(parameter.grad is None for parameter in encoder)


# The lift


def test_a_lift_starts_as_the_reconstruction_whatever_its_form() -> None:
    projection = fitted("qwen2_vl", 6).projection
    stored = torch.randn(5, 6)
    truth = projection.reconstruct(stored)
    plain, deep = Lift(projection)(stored), Lift(projection, hidden=16)(stored)
    assert torch.equal(plain, deep)
    torch.testing.assert_close(plain, truth)
    torch.testing.assert_close(Lift(projection, 16, spread=37.0)(stored), truth)


def test_a_lift_of_another_size_is_refused() -> None:
    vlm, projection = wrapped("qwen2_vl"), fitted("qwen2_vl", 6).projection
    with pytest.raises(ProjectionError, match="expected a lift from 6 to 32 dimensions, got one from 5 to 32"):
        TextureEmbeddingVLM(vlm, projection, Lift(projection.first(5)))


# The planes


def test_samples_at_the_cells_are_what_was_stored() -> None:
    grid = Mosaic((Grid(1, 7, 13), Grid(3, 5, 3)))
    dice = torch.Generator().manual_seed(0)
    rows = torch.randn(grid.n, 4, generator=dice)
    cells = torch.randperm(grid.n, generator=dice)[:60].sort().values
    stored = EmbeddingPlanes.of(grid, cells, rows[cells])
    assert [tuple(plane.shape) for plane in stored.planes] == [(4, 7, 13)] + [(4, 5, 3)] * 3
    assert torch.equal(stored.at(cells), rows[cells])
    others = torch.tensor(sorted(set(range(grid.n)) - set(cells.tolist())))
    assert stored.at(others).abs().max() < 1e-14
    some = cells[torch.tensor([41, 0, 7])]  # in any order
    assert torch.equal(stored.at(some), rows[some])


def test_between_cells_a_sample_lies_between_theirs() -> None:
    stored = EmbeddingPlanes.of(Grid(1, 2, 2), torch.arange(4), torch.tensor([[0.0], [1.0], [2.0], [3.0]]))
    assert stored.sample([[0.5, 0.25], [0.5, 0.5], [0.0, 0.0]]).tolist() == [[0.5], [1.5], [0.0]]


def test_the_planes_are_embedding_channels_of_a_texture_array() -> None:
    [stored] = fitted("qwen2_vl", 16).planes(picture())
    texture = stored.texture()
    assert texture.names == tuple(f"embedding_{number:02d}" for number in range(16))
    points = torch.rand(9, 2)
    torch.testing.assert_close(texture.sample(points), stored.sample(points))
    supplied = arr_coc.TextureArray.from_image(picture(), embeddings=stored.planes[0])
    rows, columns = stored.planes[0].shape[1:]
    shown = supplied.grid(rows, columns, ["embedding_03"])[0].flatten()
    assert torch.corrcoef(torch.stack([shown, stored.planes[0][3].flatten()]))[0, 1] > 0.8
    with pytest.raises(ChannelError, match="has 16 embedding channels, these are 20"):
        fitted("qwen2_vl", 20).planes(picture())[0].texture()


# Fitting, writing, reading


def test_fitting_is_the_pca_of_all_tokens() -> None:
    vlm, reader = wrapped("qwen3_vl"), fitted("qwen3_vl", 6)
    rows = []
    for seed in range(4):
        inputs = vlm.processor(images=[picture(72, 56, seed)], text=["<|image_pad|>"], return_tensors="pt")
        with torch.no_grad():
            made = vlm.model.model.visual(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"])
        rows.append(torch.cat([made.pooler_output, *made.deepstack_features], -1))
    stacked = torch.cat(rows).double().numpy()
    around = stacked - stacked.mean(0)
    strength, directions = np.linalg.svd(around, full_matrices=False)[1:]
    np.testing.assert_allclose(np.abs(reader.projection.components.numpy() @ directions[:6].T), np.eye(6), atol=1e-4)
    np.testing.assert_allclose(reader.projection.variance, strength[:6] ** 2 / (strength**2).sum(), rtol=1e-4)
    assert reader.projection.pictures == 4
    with pytest.raises(ProjectionError, match="got none"):
        TextureEmbeddingVLM.fit(vlm, [])


def test_what_was_trained_is_read_back(tmp_path: Path) -> None:
    vlm = wrapped("qwen2_vl")
    torch.manual_seed(1)
    reader = TextureEmbeddingVLM.fit(vlm, [picture(72, 56, seed) for seed in range(4)], 6, hidden=8)
    with torch.no_grad():
        for parameter in reader.lift.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    again = TextureEmbeddingVLM.from_pretrained(reader.save_pretrained(tmp_path), vlm)
    assert torch.equal(logits(again.vlm), logits(reader.vlm))
    assert again.vlm.model is vlm.model
    note = json.loads((tmp_path / "texture_vlm.json").read_text())
    assert (note["dims"], note["width"], note["hidden"], note["language"]) == (6, 32, 8, False)


def test_an_adapted_language_model_is_read_into_a_copy(tmp_path: Path) -> None:
    vlm = arr_coc.wrap(families.model("qwen2_vl"), tiny_vlm.processor("qwen2_vl"))
    projection = fitted("qwen2_vl", 6).projection
    before = logits(TextureEmbeddingVLM(vlm, projection).vlm)
    with torch.no_grad():
        vlm.adapter.text_model.layers[-1].mlp.down_proj.weight.mul_(3)
    reader = TextureEmbeddingVLM(vlm, projection)  # the encoder is the same, whatever the language model does
    adapted = logits(reader.vlm)
    assert (adapted - before).abs().max() > 1e-2
    reader.save_pretrained(tmp_path, language=True)
    fresh = wrapped("qwen2_vl")
    plain = logits(fresh)
    again = TextureEmbeddingVLM.from_pretrained(tmp_path, fresh)
    assert torch.equal(logits(again.vlm), adapted)
    assert torch.equal(logits(fresh), plain)
    assert again.vlm.model.model.visual.patch_embed.proj.weight is fresh.model.model.visual.patch_embed.proj.weight


def test_what_belongs_to_another_model_or_is_broken_is_refused(tmp_path: Path) -> None:
    reader = fitted("qwen2_vl", 6)
    folder = reader.save_pretrained(tmp_path / "a", language=True)
    other = families.model("qwen2_vl", seed=5)
    with pytest.raises(ProjectionError, match=r"is for the encoder 'tokens-.*fit one with"):
        TextureEmbeddingVLM.from_pretrained(folder, arr_coc.wrap(other, tiny_vlm.processor("qwen2_vl")))
    with pytest.raises(ProjectionError, match=r"holds another language model than VLM\(Qwen3-VL"):
        TextureEmbeddingVLM.from_pretrained(folder, wrapped("qwen3_vl"))
    with pytest.raises(ProjectionError, match="got one that reads a texture"):
        TextureEmbeddingVLM(reader.vlm, reader.projection)
    wide = replace(reader.projection, components=torch.eye(6, 40), image_mean=torch.zeros(40))
    with pytest.raises(ProjectionError, match="expected a projection of 32 dimensions, got 40"):
        TextureEmbeddingVLM(wrapped("qwen2_vl"), wide)
    data = bytearray((folder / "lift.safetensors").read_bytes())
    data[-3] ^= 1
    (folder / "lift.safetensors").write_bytes(bytes(data))
    with pytest.raises(ProjectionError, match="is damaged: its checksum is wrong"):
        TextureEmbeddingVLM.from_pretrained(folder, wrapped("qwen2_vl"))
    (folder / "texture_vlm.json").write_text('{"format": "else"}')
    with pytest.raises(ProjectionError, match="holds no texture embeddings"):
        TextureEmbeddingVLM.from_pretrained(folder, wrapped("qwen2_vl"))
    with pytest.raises(ProjectionError, match=r"holds no texture embeddings .* No such file"):
        TextureEmbeddingVLM.from_pretrained(tmp_path / "nowhere", wrapped("qwen2_vl"))


def test_precision_that_holds_the_same_numbers_is_the_same_encoder() -> None:
    model = families.model("qwen2_vl").half()
    half = encoder_identity(model, model.model.language_model)
    assert half == encoder_identity(model.float(), model.model.language_model)
    with torch.no_grad():
        model.model.visual.merger.mlp[0].bias[0] += 1
    assert half != encoder_identity(model, model.model.language_model)


def test_half_precision_is_read_in_half_precision() -> None:
    vlm = arr_coc.wrap(families.model("qwen2_vl").bfloat16(), tiny_vlm.processor("qwen2_vl"))
    reader = TextureEmbeddingVLM(vlm, unchanged(vlm))
    assert torch.equal(logits(reader.vlm), logits(vlm))
    assert reader.lift.linear.weight.dtype == torch.float32


def test_deep_features_lie_beside_the_tokens() -> None:
    vlm = wrapped("qwen3_vl")
    seen = vlm.look(picture())
    vlm.prepare(look=seen, text=QUESTION)
    [encoding] = seen.encoded.values()
    assert token_rows(encoding.tokens[0]).shape == (encoding.tokens[0].tokens.shape[0], 32 * 3)
