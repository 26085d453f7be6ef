"""An encoder by name, one's own included: "module:Name" from the working folder, beside what `open_encoder` knows."""

from __future__ import annotations

import importlib
import os
import sys

import torch

from arr_coc.embedding.encoder import Encoder, open_encoder
from arr_coc.errors import ArrCocError, EncoderError, first_line

OURS = ("open_clip:", "vlm:")  # names with a colon that `open_encoder` reads itself


def open_named(name: str, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Encoder:
    """What `open_encoder` opens, or `module:Name`: an Encoder class or a function without arguments that makes one.

    A plain function of a module, so that worker processes can be told to call it.
    """
    module, colon, attribute = name.partition(":")
    if not colon or name.startswith(OURS) or not module.replace(".", "").isidentifier() or len(module) == 1:
        return open_encoder(name, device, dtype)
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except ArrCocError:
        raise
    except Exception as error:
        raise EncoderError(
            f"the encoder {name!r} cannot be made ({type(error).__name__}: {first_line(error)})"
        ) from error
    finally:
        sys.path.remove(here)
    if not isinstance(made, Encoder):
        raise EncoderError(f"expected {name!r} to make an Encoder, got {type(made).__name__}")
    return made
