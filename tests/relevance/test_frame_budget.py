"""One budget for all moments of a video: nothing is read twice while there is something else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc import TextureArray
from arr_coc.errors import ArrCocError
from arr_coc.relevance import frame_budget as sharing
from arr_coc.relevance.selector import ArrCoc
from arr_coc.selectors import selector
from arr_coc.selectors.base import Choice, Sight, Words
from arr_coc.types.grid import Grid
from arr_coc.video import synthetic as rendering


def pixels(frames: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(frame).permute(2, 0, 1).float() / 255 for frame in frames]


def sight(frames: list[np.ndarray], moments: int, k: int) -> Sight:
    grid = Grid(moments, 13, 23)
    batch = TextureArray.from_image(frames)
    words = Words("", torch.zeros(0, dtype=torch.long))
    return Sight(grid, k, torch.arange(grid.n), words, picture=lambda: batch, kind="video")  # type: ignore[arg-type, return-value]


def per_moment(frames: list[np.ndarray], moments: int, k: int) -> list[int]:
    seen = sight(frames, moments, k)
    chosen = selector("arr-coc").select(seen)
    keep = chosen if isinstance(chosen, torch.Tensor) else chosen.keep
    assert len(keep) == k
    return torch.bincount(seen.grid.thw(keep)[:, 0], minlength=moments).tolist()


def test_frames_that_bring_nothing_new_get_few() -> None:
    counts = sorted(per_moment(rendering.static(4).frames, 4, 60))
    assert counts[-1] >= 50


def test_across_a_cut_nothing_is_told() -> None:
    clip = rendering.rendered("cut", 8)
    across, within = sharing.linked(pixels([clip.frames[1], clip.frames[2], clip.frames[3]]), (13, 23))
    assert float(across.later.mean()) < 0.3
    assert float(within.later.mean()) > 0.6


def test_a_ball_is_new_wherever_it_is() -> None:
    clip = rendering.moving_object(13)
    frames = clip.frames[::4]
    links = sharing.linked(pixels(frames), (13, 23))
    box = clip.evidence[8]
    assert box is not None
    row, column = int((box[1] + box[3]) / 2 * 13 / 360), int((box[0] + box[2]) / 2 * 23 / 640)
    assert float(links[1].later[row, column]) < 0.5
    assert float(links[1].later.mean()) > 0.8


def test_what_a_pan_shows_again_is_told_along_the_motion() -> None:
    frames = rendering.pan(25, step=4).frames[::8]
    links = sharing.linked(pixels(frames), (13, 23))
    shown = dict(sharing._shown(0, links, torch.Size((13, 23))))
    assert float(shown[1][1:8, 2:-2].mean()) > 0.5  # the upper part has been seen
    assert float(shown[3][-2:].mean()) < 0.2  # the lowest has not
    assert float(shown[3].mean()) < float(shown[1].mean())


def test_a_dark_margin_that_goes_by_is_no_change_of_light() -> None:
    page = rendering.page().pixels[:520].copy()
    page[:160] //= 5
    first, second = (np.ascontiguousarray(page[top : top + 360]) for top in (0, 120))
    [link] = sharing.linked(pixels([first, second]), (13, 23))
    assert float(link.later[1:8].mean()) > 0.9


def test_the_moment_with_most_to_tell_goes_first_and_keeps_all_of_it() -> None:
    relevance = torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(0))
    relevance[1] += 1
    same = sharing.linked(pixels([rendering.street().pixels] * 3), (6, 8))
    found, order = sharing.worth(relevance, same)
    assert order[0] == 1
    assert torch.equal(found[1], relevance[1])
    inner = (slice(1, -1), slice(1, -1))
    assert torch.allclose(found[0][inner], sharing.REPEATED * relevance[0][inner], atol=0.02)


def test_a_moment_that_is_surer_of_the_answer_goes_before_one_with_more_to_tell() -> None:
    relevance = torch.full((3, 6, 8), 0.4)
    relevance[2] = 0.0
    relevance[2, 3, 2:5] = 0.9
    links = sharing.linked(
        pixels([rendering.street().pixels, rendering.page().pixels[:640, :480], rendering.street().pixels]), (6, 8)
    )
    assert sharing.worth(relevance, links)[1][0] != 2
    assert sharing.worth(relevance, links, surest=True)[1][0] == 2


def line(row: int, values: list[float], links: list[sharing.Link]) -> torch.Tensor:
    """The relevance of a line that lies at `row` of the first moment and moves as the links say: `[t, 13, 23]`."""
    relevance = torch.full((len(values), 13, 23), 0.05)
    at = float(row)
    for moment, value in enumerate(values):
        relevance[moment, round(at), 4:9] = value
        at -= float(links[moment].back.vectors[1].median()) if moment < len(links) else 0.0
    return relevance


def test_what_the_border_cuts_off_makes_no_moment_sure() -> None:
    """A pan down a page: the same line is at the lower border first, and in the middle later."""
    links = sharing.linked(pixels(rendering.pan(25, step=4).frames[::8]), (13, 23))
    assert sharing.worth(line(12, [1.0, 0.9, 0.9, 0.9], links), links, surest=True)[1][0] > 0


def test_only_borders_beyond_which_there_is_more_cut_things_off() -> None:
    """The upper border of the first moment is the page's own, and so is the lower one of the last; sides stay sides."""
    links = sharing.linked(pixels(rendering.pan(25, step=4).frames[::8]), (13, 23))
    deep = [sharing._depth(moment, links, torch.Size((13, 23))) for moment in range(4)]
    assert [float(one[0, 5]) for one in deep] == [sharing.ROOM, 0, 0, 0]
    assert [float(one[-1, 5]) for one in deep] == [0, 0, 0, sharing.ROOM]
    assert [float(one[3, 5]) for one in deep] == [sharing.ROOM, 3, 3, 3]
    assert all(float(one[6].min()) == sharing.ROOM for one in deep)


def test_of_moments_that_are_as_sure_the_one_with_more_around_the_thing_goes_first() -> None:
    links = sharing.linked(pixels(rendering.pan(25, step=4).frames[::8]), (13, 23))
    assert sharing.worth(line(11, [0.9, 0.9, 0.9, 0.9], links), links, surest=True)[1][0] == 3
    assert sharing.worth(line(6, [0.9, 0.9, 0.9, 0.9], links), links, surest=True)[1][0] < 3


def test_the_next_best_thing_is_not_taken_for_the_answer() -> None:
    """Where the answer is in view, a line further down counts for little; out of view of it, that line looks like it."""
    links = sharing.linked(pixels(rendering.pan(25, step=4).frames[::8]), (13, 23))
    relevance = torch.full((4, 13, 23), 0.05)
    relevance[0, 1, 4:9] = 0.9
    relevance[0, 8, 4:9] = 0.3
    down = round(float(links[0].forth.vectors[1].median()))
    relevance[1, 8 + down, 4:9] = 1.0
    assert sharing.worth(relevance, links, surest=True)[1][0] == 0


def test_what_no_other_moment_shows_is_agreed_on() -> None:
    street, page = rendering.street().pixels, rendering.page().pixels[:640, :480]
    links = sharing.linked(pixels([street, page, street]), (6, 8))
    relevance = torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sharing.agreed(relevance, links, torch.ones(3, 6, 8)), relevance)


def test_a_moment_is_read_out_before_the_next_is_opened() -> None:
    values = torch.tensor([[[0.9, 0.5, 0.01]], [[0.95, 0.2, 0.1]]])
    ranked = sharing.one_by_one(values, [0, 1], 5).flatten()
    assert ranked.argsort(descending=True).tolist() == [0, 1, 3, 4, 5, 2]


def test_no_moment_is_opened_that_cannot_be_read_out() -> None:
    values = torch.tensor([[[0.9, 0.5, 0.01]], [[1.0, 0.2, 0.1]], [[0.3, 0.0, 0.0]]])
    ranked = sharing.one_by_one(values, [0, 1, 2], 4).flatten()
    assert ranked.argsort(descending=True).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_moments_share_as_they_are_told_to() -> None:
    frames = rendering.pan(25, step=4).frames[::8]
    seen = sight(frames, 4, 60)
    counts = {}
    for how in ("surest", "together"):
        chosen = selector(ArrCoc(moments=how)).select(seen)
        assert isinstance(chosen, Choice)
        counts[how] = sorted(torch.bincount(seen.grid.thw(chosen.keep)[:, 0], minlength=4).tolist())
    assert counts["surest"][-1] >= 55
    assert counts["together"][-1] < 55
    with pytest.raises(ArrCocError, match="moments as one of auto, surest, together"):
        selector(ArrCoc(moments="all")).select(seen)
