"""The GPU bench runs kernels in Triton's interpreter, with the fixture of the kernels' tests."""

from tests.texture.kernels.conftest import unwritten_lanes

__all__ = ["unwritten_lanes"]
