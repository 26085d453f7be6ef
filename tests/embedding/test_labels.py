"""The default encoder: the parts that need no wheel, and, where the wheels are installed, what it sees in photographs."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.embedding import labels, open_encoder
from arr_coc.embedding.labels import LabelsEncoder, read_labels
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
    from arr_coc.embedding.labels import SentenceEncoder

    with pytest.raises(EncoderError, match="expected a sentence encoder in"):
        SentenceEncoder(tmp_path, torch.device("cpu"))


@installed
def test_a_place_is_the_convex_combination_of_its_labels(encoder: LabelsEncoder) -> None:
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
def test_it_knows_what_is_in_a_photograph(encoder: LabelsEncoder, photographs: dict[str, np.ndarray]) -> None:
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
def test_it_says_where_things_are(encoder: LabelsEncoder, photographs: dict[str, np.ndarray], mode: Any) -> None:
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
def test_identity_names_the_settings(encoder: LabelsEncoder) -> None:
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
def test_questions_are_asked_by_what_they_name(encoder: LabelsEncoder) -> None:
    dog, same, other = encoder.text(["Where is the dog?", "dog", "Where is the traffic light?"])
    assert torch.allclose(dog, same, atol=1e-6)
    assert float(dog @ other) < 0.5
    assert torch.allclose(encoder.text(["Where is the dog?"])[0], dog, atol=1e-5)  # alone or with others
