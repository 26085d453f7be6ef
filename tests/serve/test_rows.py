"""One row of a batch: where it ends, and what its stream gets."""

from __future__ import annotations

import pytest
import torch

from arr_coc.serve.rows import BatchProgress, Event, Piece, Row

END = 0


def decode(ids: torch.Tensor) -> str:
    return bytes(ids.tolist()).decode(errors="replace").strip()


def played(text: str, max_tokens: int = 99, stop: tuple[str, ...] = (), stream: bool = True) -> tuple[Row, list[Event]]:
    """A row after the bytes of a text and the end token, and what it emitted before its last look."""
    events: list[Event] = []
    row = Row(max_tokens, stop, stream, events.append)
    for token in [*text.encode(), END]:
        row.push(token, {END}, decode)
    return row, events


@pytest.mark.parametrize(
    ("text", "max_tokens", "stop", "whole", "finish"),
    [
        ("12.50", 99, (), "12.50", "stop"),
        ("12.50", 2, (), "12", "length"),
        ("12.50", 5, (), "12.50", "length"),
        ("12.50 EUR", 99, (" EUR",), "12.50", "stop"),
        ("one two three", 99, ("three", "two"), "one ", "stop"),
        ("", 99, (), "", "stop"),
        ("ab", 99, ("ab",), "", "stop"),
        ("straße", 99, (), "straße", "stop"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_row_ends_where_it_should(
    text: str, max_tokens: int, stop: tuple[str, ...], whole: str, finish: str, stream: bool
) -> None:
    row, events = played(text, max_tokens, stop, stream)
    assert (row.whole(decode), row.finish) == (whole, finish)
    pieces = [event.text for event in events if isinstance(event, Piece)]
    assert "".join(pieces) == (whole if stream else "")


def test_a_stream_gets_every_letter_when_it_is_known() -> None:
    _, events = played("straße")
    assert events == [Piece(""), *(Piece(letter) for letter in "straße")]  # the two bytes of ß are one piece


def test_a_possible_stop_string_is_held_back() -> None:
    row, events = played("a<b</c", stop=("</s>",))
    assert Piece("a") in events
    assert Piece("<") not in events  # it came together with what followed
    assert row.whole(decode) == "a<b</c"


def test_rows_of_a_batch_end_by_themselves() -> None:
    rows = [Row(1, (), False, lambda event: None), Row(9, (), False, lambda event: None), Row(9, (), False, print)]
    progress = BatchProgress(rows, {END}, decode)
    rows[2].left.set()
    assert progress(torch.tensor([[5, 65], [5, 66], [5, 67]]), None).tolist() == [True, False, True]
    assert progress(torch.tensor([[5, 65, 7], [5, 66, END], [5, 67, 7]]), None).tolist() == [True, True, True]
    assert [row.finish for row in rows] == ["length", "stop", "left"]
    assert [row.whole(decode) for row in rows] == ["A", "B", ""]
