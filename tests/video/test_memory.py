"""What is reused, what is recomputed, and when everything starts from nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import synthetic_clips
from arr_coc import Embeddings, TextureArray
from arr_coc.errors import ArrCocError
from arr_coc.video import texture_update
from arr_coc.video.memory import Memory, MemorySettings, Reuse


def run(memory: Memory, frames: list[np.ndarray]) -> list[tuple[TextureArray, Reuse]]:
    return [memory.update(frame) for frame in frames]


def encoder_calls(embeddings: Embeddings) -> int:
    return embeddings.encoder.calls  # type: ignore[attr-defined]


def test_a_static_scene_is_encoded_at_keyframes_only(yellows: Embeddings) -> None:
    results = run(Memory(yellows, MemorySettings(keyframe=4)), synthetic_clips.draw_clip("static", 10).frames)
    assert [number for number, (_, reuse) in enumerate(results) if reuse.features < 1] == [0, 4, 8]
    assert [reuse.why for _, reuse in results][::4] == ["first frame", "keyframe", "keyframe"]
    assert encoder_calls(yellows) == 3
    assert np.mean([reuse.texture for _, reuse in results[1:4]]) > 0.95


def test_a_moving_ball_is_recomputed_and_the_street_is_reused(yellows: Embeddings) -> None:
    results = run(Memory(yellows), synthetic_clips.draw_clip("object", 8).frames)
    assert all(0.5 < reuse.texture < 1 for _, reuse in results[2:])


def test_warped_channels_are_close_to_computed_ones() -> None:
    frames = synthetic_clips.draw_clip("zoom", 6).frames
    memory = Memory()
    for frame in frames:
        texture, _ = memory.update(frame)
    alone = TextureArray.from_image(frames[-1])
    for name in texture_update.WARPED:
        error = (texture.grid(13, 23, [name]) - alone.grid(13, 23, [name])).abs().mean()
        spread = alone.grid(13, 23, [name]).std()
        assert float(error) < 0.25 * float(spread), name


def test_recomputed_windows_are_exact() -> None:
    frames = synthetic_clips.draw_clip("object", 4).frames
    memory = Memory()
    for frame in frames:
        texture, _ = memory.update(frame)
    box = synthetic_clips.draw_clip("object", 4).evidence[3]
    assert box is not None
    left, top, right, bottom = (int(side) for side in box)
    alone = TextureArray.from_image(frames[-1])
    for name in ("edges", "highpass", "lowpass"):
        there, known = (one[name][top:bottom, left:right] for one in (texture, alone))
        assert torch.allclose(there, known, atol=1e-5), name


def test_features_follow_the_motion(yellows: Embeddings) -> None:
    clip = synthetic_clips.film_still(
        "", synthetic_clips.street(), [synthetic_clips.Camera(400 + 12 * number, 370) for number in range(6)]
    )
    memory = Memory(yellows, MemorySettings(motion_every=100, encode_every=100))
    warped = [memory.update(frame)[0] for frame in clip.frames][-1]
    assert encoder_calls(yellows) == 1
    error = yellows.compressed(warped) - yellows.with_empty_cache().compressed(clip.frames[-1])
    unmoved = yellows.with_empty_cache().compressed(clip.frames[0]) - yellows.with_empty_cache().compressed(
        clip.frames[-1]
    )
    known = slice(None, -4)  # the right side is new
    assert float(error[..., known].abs().mean()) < 0.6 * float(unmoved[..., known].abs().mean())


def test_motion_triggers_the_encoder_but_not_too_often(yellows: Embeddings) -> None:
    results = run(Memory(yellows, MemorySettings(motion_every=3)), synthetic_clips.draw_clip("pan", 14).frames)
    encoded = [number for number, (_, reuse) in enumerate(results) if reuse.features < 1]
    assert len(encoded) >= 4
    assert min(np.diff(encoded)) >= 3


def test_native_windows_are_encoded_in_one_call(native_yellows: Embeddings) -> None:
    encoder = native_yellows.encoder
    clip = synthetic_clips.draw_clip("object", 8)
    memory = Memory(native_yellows, MemorySettings(motion_every=1))
    memory.update(clip.frames[0])
    before, whole = encoder_calls(native_yellows), encoder.windows  # type: ignore[attr-defined]
    results = [memory.update(frame) for frame in clip.frames[1:]]
    assert encoder_calls(native_yellows) - before <= 7
    assert encoder.windows - whole < 7 * whole  # type: ignore[attr-defined]
    texture = results[-1][0]
    box = clip.evidence[7]
    assert box is not None
    scores = native_yellows.scores(texture, ["yellow"], grid=(18, 32))[0].view(18, 32)
    best = divmod(int(scores.argmax()), 32)
    assert box[1] - 20 <= best[0] * 20 <= box[3]
    assert box[0] - 20 <= best[1] * 20 <= box[2]


def test_windows_that_no_motion_explains_are_recomputed() -> None:
    """A screen with other content on each frame: flow finds some motion between any two pictures."""
    clip = synthetic_clips.draw_clip("static", 8)
    rng = np.random.default_rng(1)
    for frame in clip.frames:
        frame[100:200, 300:460] = np.kron(rng.integers(0, 256, (10, 16, 3)), np.ones((10, 10, 1))).astype(np.uint8)
    memory = Memory()
    results = [memory.update(frame) for frame in clip.frames]
    alone = TextureArray.from_image(clip.frames[-1])
    assert all(0 < reuse.texture < 1 for _, reuse in results[1:])
    assert torch.allclose(results[-1][0]["edges"][100:200, 300:460], alone["edges"][100:200, 300:460], atol=1e-5)


def test_a_change_of_light_is_no_reason_to_recompute_everything(yellows: Embeddings) -> None:
    frames = synthetic_clips.draw_clip("static", 4).frames
    frames[2] = np.clip(frames[2].astype(np.float32) * 1.15 + 10, 0, 255).astype(np.uint8)
    results = run(Memory(yellows), frames)
    assert results[2][1].texture > 0.5


def test_another_size_starts_from_nothing() -> None:
    memory = Memory()
    frame = synthetic_clips.draw_clip("static", 1).frames[0]
    memory.update(frame)
    assert memory.update(frame[:300])[1].why == "another size"
    assert memory.update(frame[:300], "cut")[1].why == "cut"


def test_relevance_follows_the_motion_and_a_new_question_clears_only_that(yellows: Embeddings) -> None:
    clip = synthetic_clips.draw_clip("pan", 4)
    memory = Memory(yellows)
    texture, _ = memory.update(clip.frames[0])
    relevance = torch.zeros(36, 64)
    relevance[20, 30] = 1.0
    memory.record_relevance(texture, relevance)
    texture, _ = memory.update(clip.frames[1])
    moved = texture.grid(36, 64, ["previous_relevance"])[0]
    assert divmod(int(moved.argmax()), 64)[0] in (19, 20)
    assert moved[19, 30] > 0.25  # it moved by 6.9 of the 10 px of a cell
    assert 0 < float(texture["fixation"].max()) < 0.2
    assert float(texture["previous_saliency"].max()) > 0.5
    memory.reset_question()
    before = encoder_calls(yellows)
    texture, _ = memory.update(clip.frames[2])
    assert float(texture["previous_relevance"].max()) == 0
    assert "previous_relevance" in texture.absent
    assert encoder_calls(yellows) == before


def test_the_motion_channel_shows_a_ball_and_no_noise() -> None:
    for name, moves in (("static", False), ("object", True)):
        memory = Memory()
        for frame in synthetic_clips.draw_clip(name, 3).frames:
            texture, _ = memory.update(frame)
        assert (float(texture["motion"].max()) > 0.3) is moves


def test_clusters_of_the_keyframe_follow_the_motion() -> None:
    clip = synthetic_clips.draw_clip("pan", 3)
    memory = Memory()
    textures = [memory.update(frame)[0] for frame in clip.frames]
    first, last = (texture["cluster_id"] for texture in (textures[0], textures[2]))
    assert set(last.unique().tolist()) <= set(first.unique().tolist())
    assert float((last[50:300] == first[64:314]).float().mean()) > 0.8


def test_with_keyframes_only_everything_is_recomputed(yellows: Embeddings) -> None:
    frames = synthetic_clips.draw_clip("pan", 4).frames
    results = run(Memory(yellows, MemorySettings(keyframe=1)), frames)
    assert all((reuse.texture, reuse.features) == (0, 0) for _, reuse in results)
    assert encoder_calls(yellows) == 4
    alone = TextureArray.from_image(frames[-1])
    for name in (*texture_update.WARPED, *texture_update.CLUSTERS):
        assert torch.equal(results[-1][0][name], alone[name]), name


def test_without_reuse_each_frame_is_a_still_picture(yellows: Embeddings) -> None:
    frames = synthetic_clips.draw_clip("object", 3).frames
    memory = Memory(yellows, MemorySettings(reuse=False))
    for frame in frames:
        texture, reuse = memory.update(frame)
        memory.record_relevance(texture, torch.ones(6, 8))
    assert reuse.why == "by itself"
    assert encoder_calls(yellows) == 3
    alone = TextureArray.from_image(frames[-1])
    assert all(torch.equal(texture[name], alone[name]) for name in texture.names if not name.startswith("embedding"))
    assert torch.equal(yellows.compressed(texture), yellows.with_empty_cache().compressed(frames[-1]))


def test_a_passing_frame_leaves_the_state_unchanged(yellows: Embeddings) -> None:
    clip = synthetic_clips.draw_clip("static", 4)
    memory = Memory(yellows)
    memory.update(clip.frames[0])
    white, reuse = memory.update(np.full_like(clip.frames[0], 255), passing=True)
    assert reuse.why == "passing"
    assert float(white["edges"].max()) == 0
    assert memory.update(clip.frames[1])[1].texture > 0.95


@pytest.mark.parametrize("wrong", [{"keyframe": 0}, {"feature_weight": 0.0}, {"motion_every": 1.5}])
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ArrCocError, match=next(iter(wrong))):
        MemorySettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_reuse_on_cuda(yellows: Embeddings) -> None:
    memory = Memory(yellows, MemorySettings(device="cuda"))
    results = run(memory, synthetic_clips.draw_clip("object", 6).frames)
    assert results[-1][0].device.type == "cuda"
    assert all(0.5 < reuse.texture < 1 for _, reuse in results[2:])
