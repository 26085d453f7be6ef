"""Tensors and a JSON note in one safetensors file, with a checksum over both.

A write is atomic: readers see the old file or the new one. A read verifies the checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from arr_coc.files import replacing

NOTE, CHECKSUM = "arr_coc", "sha256"  # keys in the file's metadata
HEADER_SIZE = 8  # bytes that hold the length of a safetensors header


class DamagedFileError(Exception):
    """The file was not written by `write`, or has changed since."""


def write(path: Path, tensors: Mapping[str, torch.Tensor], note: Mapping[str, Any]) -> int:
    """Write the file and return its size; on an error nothing is left behind."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(note)
    data = safetensors.torch.save(plain, {NOTE: text, CHECKSUM: checksum(plain, text)})
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return len(data)


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the note. Raises `OSError` if the file cannot be opened, `DamagedFileError` if it is not valid."""
    data = path.read_bytes()
    try:
        header = json.loads(data[HEADER_SIZE : HEADER_SIZE + int.from_bytes(data[:HEADER_SIZE], "little")])
        text, expected = header["__metadata__"][NOTE], header["__metadata__"][CHECKSUM]
        note = json.loads(text)
        tensors = safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"it is not a safetensors file of ours ({type(error).__name__})") from None
    if not isinstance(note, dict) or checksum(tensors, text) != expected:
        raise DamagedFileError("its checksum is wrong")
    return tensors, note


def checksum(tensors: Mapping[str, torch.Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
