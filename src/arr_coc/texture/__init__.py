"""The texture array: image in, named channels out."""

from arr_coc.texture import channels  # noqa: F401  (registers the channels)
from arr_coc.texture.array import TextureArray, TextureBatch
from arr_coc.texture.layout import FULL40, LAYOUTS, MVP13, Channel, all_channels, channel

__all__ = ["FULL40", "LAYOUTS", "MVP13", "Channel", "TextureArray", "TextureBatch", "all_channels", "channel"]
