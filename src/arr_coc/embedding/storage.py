"""Tensors and a JSON note in one safetensors file, with a checksum over both.

Files are put in place at once: a reader sees the old one or the new one, never half, and believes neither without the checksum.
"""

from __future__ import annotations

import hashlib
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
CHECKSUM = "sha256"
LENGTH = 8  # bytes that say how long a safetensors header is
SPARE = ".new-"  # between the name of a file and the mark of whoever is writing it


class Damaged(Exception):
    """A file that is not what `write` wrote."""


def write(path: Path, tensors: Mapping[str, torch.Tensor], note: Mapping[str, Any]) -> int:
    """Write the file and return its size; on any error nothing is left of it."""
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    said = json.dumps(note)
    data = pack(own, {NOTE: said, CHECKSUM: checksum(own, said)})
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
        said, given = header["__metadata__"][NOTE], header["__metadata__"][CHECKSUM]
        note = json.loads(said)
        tensors = parse(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"it is not a safetensors file of ours ({type(error).__name__})") from None
    if not isinstance(note, dict) or checksum(tensors, said) != given:
        raise Damaged("its checksum is wrong")
    return tensors, note


def checksum(tensors: Mapping[str, torch.Tensor], said: str) -> str:
    digest = hashlib.sha256(said.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
