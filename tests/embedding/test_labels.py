"""The default encoder: the parts that need no wheel, and, where the wheels are installed, what it sees in photographs."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import arr_coc
from arr_coc.embedding import labels, open_encoder
from arr_coc.embedding.labels import (
    BATCH_NORM_EPS,
    CLASSES,
    HEAD,
    STAGES,
    STEM,
    LabelsEncoder,
    SentenceEncoder,
    fold_batch_norm,
    load_classifier,
    read_labels,
)
from arr_coc.errors import EncoderError

installed = pytest.mark.skipif(
    find_spec(labels.CLASSIFIER[0]) is None or find_spec(labels.SENTENCES[0]) is None,
    reason='needs pip install "arr-coc[labels]"',
)


@pytest.fixture(scope="module")
def encoder() -> Any:
    return open_encoder("labels")


@pytest.fixture(scope="module")
def photographs() -> dict[str, np.ndarray]:
    """A cat's face and a cup of coffee, which scikit-image brings."""
    data = pytest.importorskip("skimage.data")
    return {"cat": data.chelsea(), "coffee": data.coffee()}


def test_there_are_a_thousand_labels_each_with_a_name_and_a_kind() -> None:
    found = read_labels()
    assert len(found) == 1000
    assert len({name for name, _ in found}) == 1000
    assert all(name and kind for name, kind in found)
    # The order is the classifier's: some that no other order would put here.
    assert [found[n][0] for n in (0, 207, 281, 504, 817, 920, 954, 999)] == [
        "tench", "golden retriever", "tabby cat", "coffee mug", "sports car", "traffic light", "banana", "toilet paper",
    ]  # fmt: skip


@pytest.mark.parametrize("missing", [labels.CLASSIFIER[0], labels.SENTENCES[0]])
def test_a_missing_wheel_gets_one_sentence_naming_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "find_spec", lambda name: None if name == missing else find_spec(name))
    if missing == labels.SENTENCES[0] and find_spec(labels.CLASSIFIER[0]) is None:
        pytest.skip("the other wheel is missing, too")
    with pytest.raises(EncoderError, match=r'needs the package .*: pip install "arr-coc\[labels\]"') as raised:
        open_encoder("labels")
    assert missing.replace("_", "-") in str(raised.value)


def test_a_folder_without_a_sentence_encoder_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="expected a sentence encoder in"):
        SentenceEncoder(tmp_path, torch.device("cpu"))


@installed
def test_a_cell_is_the_convex_combination_of_its_labels(encoder: LabelsEncoder) -> None:
    image = torch.rand(1, 3, 64, 96)
    with torch.no_grad():
        scores = encoder.classifier((image * 255 - 127) / 128)[0]  # [1000, 2, 3]
        found = encoder.encode_batch(image)[0]
    sentences = encoder.sentences([f"a photo of a {name}, a kind of {kind}" for name, kind in read_labels()]).double()
    vectors = sentences - sentences.mean(0)
    vectors = vectors / vectors.norm(dim=1, keepdim=True)
    for row in range(2):
        for column in range(3):
            powers = (scores[:, row, column].double() / 2).exp()
            slow = sum(float(p) * vector for p, vector in zip(powers / powers.sum(), vectors, strict=True))
            assert torch.allclose(found[:, row, column].double(), slow, atol=1e-5)  # type: ignore[arg-type]


@installed
def test_the_classifier_recognises_photographs(encoder: LabelsEncoder, photographs: dict[str, np.ndarray]) -> None:
    names = read_labels()
    expected = {"cat": {"cat"}, "coffee": {"drink", "cup"}}
    for what, photograph in photographs.items():
        pixels = torch.from_numpy(photograph.copy()).permute(2, 0, 1).float()[None] / 255
        side = torch.nn.functional.interpolate(pixels, (224, 320), mode="bilinear", antialias=True)
        with torch.no_grad():
            best = int(encoder.classifier((side * 255 - 127) / 128)[0].mean((1, 2)).argmax())
        assert names[best][1] in expected[what], names[best]


@installed
@pytest.mark.parametrize("mode", ["fast", "native"])
def test_scores_locate_objects(encoder: LabelsEncoder, photographs: dict[str, np.ndarray], mode: Any) -> None:
    high = 300
    left, right = photographs["cat"][:high, 60:360], photographs["coffee"][50 : 50 + high, 120:420]
    both = np.concatenate([left, right], axis=1)
    if mode == "native":
        both = np.repeat(np.repeat(both, 2, axis=0), 2, axis=1)  # 1200 px wide: several windows
    dense = encoder.dense(both, mode)
    found = dense.similarity(encoder.text(["Where is the cat?", "Where is the coffee?"]))
    half = dense.grid[1] // 2
    assert found[0, :, :half].mean() > found[0, :, half:].mean() + 0.1
    assert found[1, :, half:].mean() > found[1, :, :half].mean() + 0.1


@installed
def test_cells_are_related_to_a_question_by_labels(encoder: LabelsEncoder, photographs: Any) -> None:
    """Side by side, each thing is found on its own side, the blank one nowhere; once read, an image is not read again."""
    cat, coffee = (
        F.interpolate(torch.from_numpy(p.copy()).permute(2, 0, 1)[None] / 255, (256, 256)) for p in photographs.values()
    )
    texture = arr_coc.TextureArray.from_image(torch.cat([cat, coffee], 3)[0])
    embeddings = arr_coc.Embeddings(encoder)
    for question, left in (("Where is the cat?", True), ("Where is the coffee?", False)):
        related = embeddings.relation(texture, question)
        assert related is not None
        found = related.grid(9, 18)[0]
        best = found.flatten().topk(20).indices % 18
        assert float((best < 9).float().mean()) == (1.0 if left else 0.0)
        kept = arr_coc.realize(texture, question, (9, 18), budget=20, using=embeddings).keep % 18
        assert float(((kept < 9) == left).float().mean()) > 0.9
    assert embeddings.runs.pictures == 1
    assert arr_coc.Embeddings(encoder, mode="native").relation(texture, "cat") is None  # windows: by cosines
    single = torch.zeros(CLASSES, 1, 1).log_softmax(0).half()
    assert torch.isfinite(encoder.relate(single, ["cat", "zebra"])).all()


@installed
def test_one_window_is_the_fast_mode(encoder: LabelsEncoder) -> None:
    image = torch.rand(3, 200, 300)
    assert torch.equal(encoder.dense(image, "fast").features, encoder.dense(image, "native").features)


@installed
@pytest.mark.parametrize("size", [(1, 1), (1, 3_000), (700, 2)])
def test_any_size(encoder: LabelsEncoder, size: tuple[int, int]) -> None:
    for mode in ("fast", "native"):
        features = encoder.dense(torch.rand(3, *size), mode).features  # type: ignore[arg-type]
        assert torch.allclose(features.norm(dim=0), torch.ones(features.shape[1:]), atol=1e-5)


@installed
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.02), (torch.bfloat16, 0.15)])
def test_half_precision_only_rounds(
    encoder: LabelsEncoder, photographs: Any, dtype: torch.dtype, tolerance: float
) -> None:
    classifier = copy.deepcopy(encoder.classifier)
    half = LabelsEncoder(classifier, encoder.sentences, encoder.labels, encoder.device, dtype)
    there, here = encoder.dense(photographs["cat"]).features, half.dense(photographs["cat"]).features
    assert 0 < (there - here).abs().max() < tolerance
    assert (there * here).sum(0).min() > 0.95
    assert half.identity == encoder.identity


@installed
def test_identity_covers_the_settings(encoder: LabelsEncoder) -> None:
    parts = encoder.classifier, encoder.sentences, encoder.labels, encoder.device
    assert LabelsEncoder(*parts).identity == encoder.identity
    assert (
        len(
            {
                encoder.identity,
                LabelsEncoder(*parts, temperature=1.0).identity,
                LabelsEncoder(*parts, side=448).identity,
            }
        )
        == 3
    )


@installed
def test_stop_words_do_not_change_a_question(encoder: LabelsEncoder) -> None:
    dog, same, other = encoder.text(["Where is the dog?", "dog", "Where is the traffic light?"])
    assert torch.allclose(dog, same, atol=1e-6)
    assert float(dog @ other) < 0.5
    assert torch.allclose(encoder.text(["Where is the dog?"])[0], dog, atol=1e-5)  # alone or with others


# The classifier against its published architecture, with batch normalisation and padding written out

Weights = dict[str, torch.Tensor]


def drawn(seed: int = 0) -> Weights:
    """Random weights under the published names."""
    dice = torch.Generator().manual_seed(seed)
    out: Weights = {}

    def convolution(name: str, norm: str, outputs: int, inputs: int, kernel: int) -> None:
        out[f"{name}.weight"] = (
            torch.randn(outputs, inputs, kernel, kernel, generator=dice) / (inputs * kernel**2) ** 0.5
        )
        out[f"{norm}.weight"] = 1 + 0.2 * torch.randn(outputs, generator=dice)
        out[f"{norm}.bias"] = 0.3 * torch.randn(outputs, generator=dice)
        out[f"{norm}.running_mean"] = 0.2 * torch.randn(outputs, generator=dice)
        out[f"{norm}.running_var"] = 0.5 + torch.rand(outputs, generator=dice)
        out[f"{norm}.num_batches_tracked"] = torch.tensor(1)

    convolution("_conv_stem", "_bn0", STEM, 3, 3)
    number, inputs = 0, STEM
    for count, kernel, _, expansion, outputs in STAGES:
        for _ in range(count):
            place, inner = f"_blocks.{number}.", inputs * expansion
            if expansion > 1:
                convolution(f"{place}_expand_conv", f"{place}_bn0", inner, inputs, 1)
            convolution(f"{place}_depthwise_conv", f"{place}_bn1", inner, 1, kernel)
            convolution(f"{place}_project_conv", f"{place}_bn2", outputs, inner, 1)
            number, inputs = number + 1, outputs
    convolution("_conv_head", "_bn1", HEAD, inputs, 1)
    out["_fc.weight"] = torch.randn(CLASSES, HEAD, generator=dice) / HEAD**0.5
    out["_fc.bias"] = torch.randn(CLASSES, generator=dice)
    return out


def reference(stored: Weights, x: torch.Tensor, even: bool = False) -> torch.Tensor:
    """`even`: padding alike on both sides, as it is not."""

    def convolution(x: torch.Tensor, name: str, norm: str, stride: int = 1, groups: int = 1) -> torch.Tensor:
        weight = stored[f"{name}.weight"]
        kernel = weight.shape[-1]
        pads = []
        for side in (x.shape[3], x.shape[2]):
            wanted = (side + stride - 1) // stride
            total = max((wanted - 1) * stride + kernel - side, 0)
            pads += [kernel // 2, kernel // 2] if even else [total // 2, total - total // 2]
        x = F.conv2d(F.pad(x, pads), weight, stride=stride, groups=groups)
        parts = (stored[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, *parts, eps=BATCH_NORM_EPS)

    x = F.relu6(convolution(x, "_conv_stem", "_bn0", 2))
    number = 0
    for count, _, stride, _, _ in STAGES:
        for nth in range(count):
            place, step, before = f"_blocks.{number}.", stride if nth == 0 else 1, x
            if f"{place}_expand_conv.weight" in stored:
                x = F.relu6(convolution(x, f"{place}_expand_conv", f"{place}_bn0"))
            x = F.relu6(convolution(x, f"{place}_depthwise_conv", f"{place}_bn1", step, x.shape[1]))
            x = convolution(x, f"{place}_project_conv", f"{place}_bn2")
            x = x + before if x.shape == before.shape and nth > 0 else x
            number += 1
    x = F.relu6(convolution(x, "_conv_head", "_bn1"))
    return torch.stack([F.linear(row.mT, stored["_fc.weight"], stored["_fc.bias"]).mT for row in x.flatten(2)])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "drawn.pth"
    torch.save(drawn(), path)
    return path


@pytest.mark.parametrize("size", [(64, 96), (33, 50), (32, 1)])
def test_the_classifier_equals_the_published_network(file: Path, size: tuple[int, int]) -> None:
    x = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.no_grad():
        found = load_classifier(file)(x).flatten(2)
        assert torch.allclose(found, reference(drawn(), x), atol=1e-4)


def test_the_reference_notices_symmetric_padding(file: Path) -> None:
    x = torch.rand(1, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        assert not torch.allclose(load_classifier(file)(x).flatten(2), reference(drawn(), x, even=True), atol=1e-2)


def test_the_input_is_not_modified(file: Path) -> None:
    x = torch.rand(1, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    kept = x.clone()
    with torch.no_grad():
        load_classifier(file)(x)
    assert torch.equal(x, kept)


def test_missing_or_broken_weights_are_refused(tmp_path: Path) -> None:
    stored = drawn()
    del stored["_blocks.3._project_conv.weight"]
    torch.save(stored, tmp_path / "less.pth")
    (tmp_path / "broken.pth").write_bytes(b"PK\x03\x04")
    for name in ("less.pth", "broken.pth"):
        with pytest.raises(EncoderError, match="expected the weights of EfficientNet-Lite0"):
            load_classifier(tmp_path / name)
    assert len(fold_batch_norm(drawn())) == 2 * (2 + sum(stage[0] for stage in STAGES) * 3 - 1 + 1)
