"""The errors a user can cause.

Each message is one sentence: what was expected, what came, what to do. The command line prints it and exits with code 2.
"""


class ArrCocError(ValueError):
    """Base of every error that bad input can cause."""


class ImageError(ArrCocError):
    """The image cannot be read, or is not an image."""


class ChannelError(ArrCocError):
    """A channel, layout or supplied map is unknown or does not fit."""
