"""What is carried over, what is looked at anew, and when everything starts afresh."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc import Embeddings, TextureArray
from arr_coc.errors import ArrCocError
from arr_coc.frames import gate as gating
from arr_coc.video import synthetic as rendering
from arr_coc.video import texture_update as renewing
from arr_coc.video.memory import Memory, Reuse, Settings


def seen(memory: Memory, frames: list[np.ndarray]) -> list[tuple[TextureArray, Reuse]]:
    return [memory.see(frame) for frame in frames]


def looks(embeddings: Embeddings) -> int:
    return embeddings.encoder.looks  # type: ignore[attr-defined]


def test_a_static_scene_is_encoded_at_keyframes_only(yellows: Embeddings) -> None:
    made = seen(Memory(yellows, Settings(keyframe=8)), rendering.rendered("static", 18).frames)
    assert [number for number, (_, reuse) in enumerate(made) if reuse.features < 1] == [0, 8, 16]
    assert [reuse.why for _, reuse in made][::8] == ["first frame", "keyframe", "keyframe"]
    assert looks(yellows) == 3
    assert np.mean([reuse.texture for _, reuse in made[1:8]]) > 0.95


def test_a_moving_ball_is_looked_at_and_the_street_is_carried(yellows: Embeddings) -> None:
    made = seen(Memory(yellows), rendering.rendered("object", 8).frames)
    assert all(0.5 < reuse.texture < 1 for _, reuse in made[2:])


def test_what_is_carried_is_what_would_have_been_worked_out() -> None:
    frames = rendering.rendered("zoom", 6).frames
    memory = Memory()
    for frame in frames:
        texture, _ = memory.see(frame)
    alone = TextureArray.from_image(frames[-1])
    for name in renewing.CARRIED:
        off = (texture.grid(13, 23, [name]) - alone.grid(13, 23, [name])).abs().mean()
        spread = alone.grid(13, 23, [name]).std()
        assert float(off) < 0.25 * float(spread), name


def test_windows_that_are_renewed_hold_exactly_what_is_there() -> None:
    frames = rendering.rendered("object", 4).frames
    memory = Memory()
    for frame in frames:
        texture, _ = memory.see(frame)
    box = rendering.rendered("object", 4).evidence[3]
    assert box is not None
    left, top, right, bottom = (int(side) for side in box)
    alone = TextureArray.from_image(frames[-1])
    for name in ("edges", "highpass", "lowpass"):
        there, known = (one[name][top:bottom, left:right] for one in (texture, alone))
        assert torch.allclose(there, known, atol=1e-5), name


def test_features_follow_the_motion(yellows: Embeddings) -> None:
    clip = rendering.filmed("", rendering.street(), [rendering.View(400 + 12 * number, 370) for number in range(6)])
    memory = Memory(yellows, Settings(demanded_every=100, encode_every=100))
    carried = [memory.see(frame)[0] for frame in clip.frames][-1]
    assert looks(yellows) == 1
    apart = yellows.compressed(carried) - yellows.anew().compressed(clip.frames[-1])
    stayed = yellows.anew().compressed(clip.frames[0]) - yellows.anew().compressed(clip.frames[-1])
    known = slice(None, -4)  # what came in at the right is not
    assert float(apart[..., known].abs().mean()) < 0.6 * float(stayed[..., known].abs().mean())


def test_motion_demands_features_but_not_too_often(yellows: Embeddings) -> None:
    made = seen(Memory(yellows, Settings(demanded_every=3)), rendering.rendered("pan", 14).frames)
    asked = [number for number, (_, reuse) in enumerate(made) if reuse.features < 1]
    assert len(asked) >= 4
    assert min(np.diff(asked)) >= 3


def test_native_windows_are_renewed_in_one_call(native_yellows: Embeddings) -> None:
    encoder = native_yellows.encoder
    clip = rendering.rendered("object", 8)
    memory = Memory(native_yellows, Settings(demanded_every=1))
    memory.see(clip.frames[0])
    before, whole = looks(native_yellows), encoder.windows  # type: ignore[attr-defined]
    made = [memory.see(frame) for frame in clip.frames[1:]]
    assert looks(native_yellows) - before <= 7
    assert encoder.windows - whole < 7 * whole  # type: ignore[attr-defined]
    texture = made[-1][0]
    box = clip.evidence[7]
    assert box is not None
    scores = native_yellows.scores(texture, ["yellow"], grid=(18, 32))[0].view(18, 32)
    best = divmod(int(scores.argmax()), 32)
    assert box[1] - 20 <= best[0] * 20 <= box[3]
    assert box[0] - 20 <= best[1] * 20 <= box[2]


def test_the_gate_leaves_out_a_flow_that_makes_things_worse() -> None:
    before = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    wrong = gating.Flow(torch.full((2, 64, 64), 3.0), torch.ones(64, 64))
    steady, worse = gating.steadied(wrong, before, before + 0.001)
    assert steady.still
    assert bool(worse.all())


def test_where_neither_flow_nor_standing_still_explains_a_frame_it_is_looked_at_anew() -> None:
    """A screen that shows something else each time: flow finds a way from any picture to any other."""
    clip = rendering.rendered("static", 8)
    rng = np.random.default_rng(1)
    for frame in clip.frames:
        frame[100:200, 300:460] = np.kron(rng.integers(0, 256, (10, 16, 3)), np.ones((10, 10, 1))).astype(np.uint8)
    memory = Memory()
    made = [memory.see(frame) for frame in clip.frames]
    alone = TextureArray.from_image(clip.frames[-1])
    assert all(0 < reuse.texture < 1 for _, reuse in made[1:])
    assert torch.allclose(made[-1][0]["edges"][100:200, 300:460], alone["edges"][100:200, 300:460], atol=1e-5)


def test_a_lamp_is_no_reason_to_look_at_everything(yellows: Embeddings) -> None:
    frames = rendering.rendered("static", 4).frames
    frames[2] = np.clip(frames[2].astype(np.float32) * 1.15 + 10, 0, 255).astype(np.uint8)
    made = seen(Memory(yellows), frames)
    assert made[2][1].texture > 0.5


def test_another_size_starts_afresh() -> None:
    memory = Memory()
    frame = rendering.rendered("static", 1).frames[0]
    memory.see(frame)
    assert memory.see(frame[:300])[1].why == "another size"
    assert memory.see(frame[:300], "cut")[1].why == "cut"


def test_relevance_moves_along_and_a_new_question_forgets_it_alone(yellows: Embeddings) -> None:
    clip = rendering.rendered("pan", 4)
    memory = Memory(yellows)
    texture, _ = memory.see(clip.frames[0])
    relevance = torch.zeros(36, 64)
    relevance[20, 30] = 1.0
    memory.learn(texture, relevance)
    texture, _ = memory.see(clip.frames[1])
    moved = texture.grid(36, 64, ["previous_relevance"])[0]
    assert divmod(int(moved.argmax()), 64)[0] in (19, 20)
    assert moved[19, 30] > 0.25  # it moved by 6.9 of the 10 px of a cell
    assert 0 < float(texture["fixation"].max()) < 0.2
    assert float(texture["previous_saliency"].max()) > 0.5
    memory.forget_question()
    before = looks(yellows)
    texture, _ = memory.see(clip.frames[2])
    assert float(texture["previous_relevance"].max()) == 0
    assert "previous_relevance" in texture.absent
    assert looks(yellows) == before


def test_noise_is_no_motion_and_a_ball_is() -> None:
    for name, moves in (("static", False), ("object", True)):
        memory = Memory()
        for frame in rendering.rendered(name, 3).frames:
            texture, _ = memory.see(frame)
        assert (float(texture["motion"].max()) > 0.3) is moves


def test_clusters_are_those_of_the_keyframe_and_move_along() -> None:
    clip = rendering.rendered("pan", 3)
    memory = Memory()
    textures = [memory.see(frame)[0] for frame in clip.frames]
    first, last = (texture["cluster_id"] for texture in (textures[0], textures[2]))
    assert set(last.unique().tolist()) <= set(first.unique().tolist())
    assert float((last[50:300] == first[64:314]).float().mean()) > 0.8


def test_every_frame_a_keyframe_is_everything_worked_out_every_time(yellows: Embeddings) -> None:
    frames = rendering.rendered("pan", 4).frames
    made = seen(Memory(yellows, Settings(keyframe=1)), frames)
    assert all((reuse.texture, reuse.features) == (0, 0) for _, reuse in made)
    assert looks(yellows) == 4
    alone = TextureArray.from_image(frames[-1])
    for name in (*renewing.CARRIED, *renewing.REGIONS):
        assert torch.equal(made[-1][0][name], alone[name]), name


def test_without_reuse_a_frame_knows_nothing_of_the_others(yellows: Embeddings) -> None:
    frames = rendering.rendered("object", 3).frames
    memory = Memory(yellows, Settings(reuse=False))
    for frame in frames:
        texture, reuse = memory.see(frame)
        memory.learn(texture, torch.ones(6, 8))
    assert reuse.why == "by itself"
    assert looks(yellows) == 3
    alone = TextureArray.from_image(frames[-1])
    assert all(torch.equal(texture[name], alone[name]) for name in texture.names if not name.startswith("embedding"))
    assert torch.equal(yellows.compressed(texture), yellows.anew().compressed(frames[-1]))


def test_a_passing_frame_changes_nothing(yellows: Embeddings) -> None:
    clip = rendering.rendered("static", 4)
    memory = Memory(yellows)
    memory.see(clip.frames[0])
    white, reuse = memory.see(np.full_like(clip.frames[0], 255), passing=True)
    assert reuse.why == "passing"
    assert float(white["edges"].max()) == 0
    assert memory.see(clip.frames[1])[1].texture > 0.95


@pytest.mark.parametrize("wrong", [{"keyframe": 0}, {"fresh": 0.0}, {"demanded_every": 1.5}])
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ArrCocError, match=next(iter(wrong))):
        Settings(**wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_the_same_is_carried(yellows: Embeddings) -> None:
    memory = Memory(yellows, Settings(device="cuda"))
    made = seen(memory, rendering.rendered("object", 6).frames)
    assert made[-1][0].device.type == "cuda"
    assert all(0.5 < reuse.texture < 1 for _, reuse in made[2:])
