"""Checking a question. Every way in uses this check: Python, command line, page, evaluation, video."""

from __future__ import annotations

from arr_coc.errors import PromptError

MAX_CHARACTERS = 20_000  # of a question; a model's own limit, in tokens, is usually lower


def check_question(question: object, limit: int = MAX_CHARACTERS) -> str:
    """The question, if it is valid text, not empty, and at most `limit` characters long."""
    if not isinstance(question, str):
        raise PromptError(f"expected a question as text, got {type(question).__name__}")
    if not question.strip():
        raise PromptError("expected a question, got an empty one: write one, such as 'What is the total amount?'")
    if len(question) > limit:
        raise PromptError(f"expected a question of at most {limit:,} characters, got {len(question):,}: shorten it")
    return check_text(question)


def check_text(text: str) -> str:
    """The text, if it is valid Unicode without NUL characters."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = text[error.start : error.start + 1].encode("unicode_escape").decode()
        raise PromptError(
            f"expected a question in valid Unicode, got {shown} at character {error.start + 1}: save or type it as UTF-8"
        ) from None
    if "\x00" in text:
        raise PromptError("expected a question without NUL characters, got one: remove it")
    return text


def check_question_tokens(count: int, limit: int | None) -> None:
    """Raise where a question of `count` tokens is longer than a model reads."""
    if limit is not None and count > limit:
        raise PromptError(
            f"expected a question of at most {limit:,} tokens, which this model reads, got {count:,}: shorten it"
        )
