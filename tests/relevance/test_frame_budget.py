"""One budget for all frames of a video: repeated content is picked last."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import synthetic_clips
from arr_coc import TextureArray
from arr_coc.errors import ArrCocError
from arr_coc.relevance import frame_budget
from arr_coc.relevance.selector import ArrCoc
from arr_coc.selectors import selector
from arr_coc.selectors.base import Choice, ImageSource, Question, SelectionInput
from arr_coc.types.grid import Grid


def pixels(frames: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(frame).permute(2, 0, 1).float() / 255 for frame in frames]


def selection(frames: list[np.ndarray], moments: int, k: int) -> SelectionInput:
    grid = Grid(moments, 13, 23)
    batch = TextureArray.from_image(frames)
    words = Question("", torch.zeros(0, dtype=torch.long))
    return SelectionInput(grid, k, torch.arange(grid.n), words, source=ImageSource(texture=batch), kind="video")  # type: ignore[arg-type, return-value]


def tokens_per_frame(frames: list[np.ndarray], moments: int, k: int) -> list[int]:
    seen = selection(frames, moments, k)
    chosen = selector("arr-coc").select(seen)
    keep = chosen if isinstance(chosen, torch.Tensor) else chosen.keep
    assert len(keep) == k
    return torch.bincount(seen.grid.thw(keep)[:, 0], minlength=moments).tolist()


def test_frames_without_new_content_get_few_tokens() -> None:
    counts = sorted(tokens_per_frame(synthetic_clips.static(4).frames, 4, 60))
    assert counts[-1] >= 50


def test_frames_across_a_cut_share_nothing() -> None:
    clip = synthetic_clips.draw_clip("cut", 8)
    across, within = frame_budget.link_frames(pixels([clip.frames[1], clip.frames[2], clip.frames[3]]), (13, 23))
    assert float(across.later.mean()) < 0.3
    assert float(within.later.mean()) > 0.6


def test_a_moving_ball_is_new_content() -> None:
    clip = synthetic_clips.moving_object(13)
    frames = clip.frames[::4]
    links = frame_budget.link_frames(pixels(frames), (13, 23))
    box = clip.evidence[8]
    assert box is not None
    row, column = int((box[1] + box[3]) / 2 * 13 / 360), int((box[0] + box[2]) / 2 * 23 / 640)
    assert float(links[1].later[row, column]) < 0.5
    assert float(links[1].later.mean()) > 0.8


@pytest.fixture(scope="module")
def links() -> list[frame_budget.Link]:
    """The links of four frames of a pan down a page."""
    return frame_budget.link_frames(pixels(synthetic_clips.pan(25, step=4).frames[::8]), (13, 23))


def test_repeated_content_follows_a_pan(links: list[frame_budget.Link]) -> None:
    shown = dict(frame_budget._visibility(0, links, torch.Size((13, 23))))
    assert float(shown[1][1:8, 2:-2].mean()) > 0.5  # the first frame shows the upper part
    assert float(shown[3][-2:].mean()) < 0.2  # but not the lowest
    assert float(shown[3].mean()) < float(shown[1].mean())


def test_frames_far_apart_on_a_page_share_lines() -> None:
    """Each frame is a quarter of the page further down: flow alone would match one line with the next."""
    cameras = [synthetic_clips.Camera(280, 300 + 120 * number) for number in range(3)]
    frames = synthetic_clips.film_still("", synthetic_clips.page(), cameras, (480, 560)).frames
    links = frame_budget.link_frames(pixels(frames), (17, 20))
    assert float(links[0].later[1:11].mean()) > 0.9
    assert float(links[0].later[14:].mean()) < 0.1
    shown = dict(frame_budget._visibility(0, links, torch.Size((17, 20))))
    assert float(shown[2][2:7, 1:-1].mean()) > 0.8


def test_a_dark_margin_that_leaves_the_frame_is_not_a_brightness_change() -> None:
    page = synthetic_clips.page().pixels[:520].copy()
    page[:160] //= 5
    first, second = (np.ascontiguousarray(page[top : top + 360]) for top in (0, 120))
    [link] = frame_budget.link_frames(pixels([first, second]), (13, 23))
    assert float(link.later[1:8].mean()) > 0.9


def test_the_frame_with_the_largest_sum_comes_first_and_is_not_discounted() -> None:
    relevance = torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(0))
    relevance[1] += 1
    same = frame_budget.link_frames(pixels([synthetic_clips.street().pixels] * 3), (6, 8))
    found, order = frame_budget.discount_repeats(relevance, same)
    assert order[0] == 1
    assert torch.equal(found[1], relevance[1])
    inner = (slice(1, -1), slice(1, -1))
    assert torch.allclose(found[0][inner], frame_budget.REPEATED * relevance[0][inner], atol=0.02)


def test_surest_ranks_the_best_cells_above_the_largest_sum() -> None:
    relevance = torch.full((3, 6, 8), 0.4)
    relevance[2] = 0.0
    relevance[2, 3, 2:5] = 0.9
    links = frame_budget.link_frames(
        pixels(
            [
                synthetic_clips.street().pixels,
                synthetic_clips.page().pixels[:640, :480],
                synthetic_clips.street().pixels,
            ]
        ),
        (6, 8),
    )
    assert frame_budget.discount_repeats(relevance, links)[1][0] != 2
    assert frame_budget.discount_repeats(relevance, links, surest=True)[1][0] == 2


def line(row: int, values: list[float], links: list[frame_budget.Link]) -> torch.Tensor:
    """The relevance of a line that lies in `row` of the first frame and moves with the links: `[t, 13, 23]`."""
    relevance = torch.full((len(values), 13, 23), 0.05)
    at = float(row)
    for moment, value in enumerate(values):
        relevance[moment, round(at), 4:9] = value
        at -= float(links[moment].back.vectors[1].median()) if moment < len(links) else 0.0
    return relevance


def test_cells_cut_off_by_the_border_do_not_count(links: list[frame_budget.Link]) -> None:
    """A pan down a page: a line is first at the lower border, later in the middle."""
    assert frame_budget.discount_repeats(line(12, [1.0, 0.9, 0.9, 0.9], links), links, surest=True)[1][0] > 0


def test_only_borders_with_content_beyond_them_count(links: list[frame_budget.Link]) -> None:
    """The first frame's upper border and the last frame's lower border are the page's own: nothing lies beyond them."""
    deep = [frame_budget._border_distance(moment, links, torch.Size((13, 23))) for moment in range(4)]
    assert [float(one[0, 5]) for one in deep] == [frame_budget.CONTEXT, 0, 0, 0]
    assert [float(one[-1, 5]) for one in deep] == [0, 0, 0, frame_budget.CONTEXT]
    assert [float(one[3, 5]) for one in deep] == [frame_budget.CONTEXT, 3, 3, 3]
    assert all(float(one[6].min()) == frame_budget.CONTEXT for one in deep)


def test_of_equally_sure_frames_the_one_with_more_context_comes_first(links: list[frame_budget.Link]) -> None:
    assert frame_budget.discount_repeats(line(11, [0.9, 0.9, 0.9, 0.9], links), links, surest=True)[1][0] == 3
    assert frame_budget.discount_repeats(line(6, [0.9, 0.9, 0.9, 0.9], links), links, surest=True)[1][0] < 3


def test_a_line_that_loses_to_the_answer_in_one_frame_does_not_win_in_another(links: list[frame_budget.Link]) -> None:
    """A lower line scores 0.3 next to the answer and 1.0 in a frame without the answer: agreement keeps it below."""
    relevance = torch.full((4, 13, 23), 0.05)
    relevance[0, 1, 4:9] = 0.9
    relevance[0, 8, 4:9] = 0.3
    down = round(float(links[0].forth.vectors[1].median()))
    relevance[1, 8 + down, 4:9] = 1.0
    assert frame_budget.discount_repeats(relevance, links, surest=True)[1][0] == 0


def test_content_of_one_frame_only_needs_no_agreement() -> None:
    street, page = synthetic_clips.street().pixels, synthetic_clips.page().pixels[:640, :480]
    links = frame_budget.link_frames(pixels([street, page, street]), (6, 8))
    relevance = torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(frame_budget.agree(relevance, links, torch.ones(3, 6, 8)), relevance)


def test_a_frame_is_kept_whole_before_the_next() -> None:
    values = torch.tensor([[[0.9, 0.5, 0.01]], [[0.95, 0.2, 0.1]]])
    ranked = frame_budget.rank_by_frame(values, [0, 1], 5).flatten()
    assert ranked.argsort(descending=True).tolist() == [0, 1, 3, 4, 5, 2]


def test_a_frame_that_does_not_fit_is_skipped() -> None:
    values = torch.tensor([[[0.9, 0.5, 0.01]], [[1.0, 0.2, 0.1]], [[0.3, 0.0, 0.0]]])
    ranked = frame_budget.rank_by_frame(values, [0, 1, 2], 4).flatten()
    assert ranked.argsort(descending=True).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_the_option_moments_chooses_how_the_budget_is_shared() -> None:
    frames = synthetic_clips.pan(25, step=4).frames[::8]
    seen = selection(frames, 4, 60)
    counts = {}
    for how in ("surest", "together"):
        chosen = selector(ArrCoc(moments=how)).select(seen)
        assert isinstance(chosen, Choice)
        counts[how] = sorted(torch.bincount(seen.grid.thw(chosen.keep)[:, 0], minlength=4).tolist())
    assert counts["surest"][-1] >= 55
    assert counts["together"][-1] < 55
    with pytest.raises(ArrCocError, match="moments as one of auto, surest, together"):
        selector(ArrCoc(moments="all")).select(seen)
