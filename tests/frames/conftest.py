"""Fixtures shared with the video tests."""

from tests.video.conftest import native_yellows, write, yellows

__all__ = ["native_yellows", "write", "yellows"]
