"""Tensors and a JSON note in one safetensors file, put in place at once: a reader sees the old file or the new, never half."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from safetensors.torch import save as pack

NOTE = "arr_coc"  # the key of the note among the file's metadata
LENGTH = 8  # bytes that say how long a safetensors header is
SPARE = ".new-"  # between the name of a file and the mark of whoever is writing it


class Damaged(Exception):
    """A file that is not what `write` wrote."""


def write(path: Path, tensors: Mapping[str, torch.Tensor], note: Mapping[str, Any]) -> int:
    """Write the file and return its size; on any error nothing is left of it."""
    data = pack({name: tensor.contiguous() for name, tensor in tensors.items()}, {NOTE: json.dumps(note)})
    spare = path.with_name(f"{path.name}{SPARE}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        spare.write_bytes(data)
        spare.replace(path)
    except BaseException:
        with suppress(OSError):
            spare.unlink()
        raise
    return len(data)


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the note; `OSError` where the file cannot be opened, `Damaged` where it is not ours or broken."""
    data = path.read_bytes()
    try:
        header = json.loads(data[LENGTH : LENGTH + int.from_bytes(data[:LENGTH], "little")])
        note = json.loads(header["__metadata__"][NOTE])
        tensors = parse(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"not a safetensors file of ours ({type(error).__name__})") from None
    if not isinstance(note, dict):
        raise Damaged("its note is not an object")
    return tensors, note
