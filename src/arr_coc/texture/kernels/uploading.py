"""The next pictures on their way to the GPU while it is busy with these: a copy stream, and 8 bits a value.

uploads.send(first)
for images in others:
    block = textures.update(uploads.take())
    uploads.send(images)                       # travels while the graph above runs
    ...
"""

from __future__ import annotations

import torch

from arr_coc.errors import ArrCocError


class Uploads:
    """Pictures uint8 `[B, 3, H, W]` from the host, one batch on its way at a time."""

    def __init__(self, shape: tuple[int, int, int, int], device: torch.device | str = "cuda") -> None:
        self.device = torch.device(device)
        on_gpu = self.device.type == "cuda"
        self._host = torch.empty(shape, dtype=torch.uint8, pin_memory=on_gpu)
        self._sent = torch.empty(shape, dtype=torch.uint8, device=self.device)
        self._stream = torch.cuda.Stream(self.device) if on_gpu else None
        self._arrived = torch.cuda.Event() if on_gpu else None
        self._taken = torch.cuda.Event() if on_gpu else None
        self._waiting = False

    def send(self, images: torch.Tensor) -> None:
        """Start sending; nobody waits, except for the copy before this one to have left the host."""
        if images.shape != self._host.shape or images.dtype != torch.uint8:
            raise ArrCocError(
                f"expected pictures uint8 {list(self._host.shape)}, got {str(images.dtype).removeprefix('torch.')} "
                f"{list(images.shape)}"
            )
        if self._waiting:
            raise ArrCocError("expected `take` before the next pictures are sent")
        if self._stream is None:
            self._sent.copy_(images)
        else:
            assert self._arrived is not None
            assert self._taken is not None
            self._arrived.synchronize()  # the host's buffer is free again
            self._host.copy_(images)
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(self._taken)  # so is the device's
                self._sent.copy_(self._host, non_blocking=True)
                self._arrived.record(self._stream)
        self._waiting = True

    def take(self) -> torch.Tensor:
        """The pictures that were sent, float32 in [0, 1], for whatever runs next on the current stream."""
        if not self._waiting:
            raise ArrCocError("expected `send` before `take`: nothing is on its way")
        self._waiting = False
        if self._stream is None:
            return self._sent.float().div_(255)
        assert self._arrived is not None
        assert self._taken is not None
        current = torch.cuda.current_stream(self.device)
        current.wait_event(self._arrived)
        pixels = self._sent.float().div_(255)
        self._taken.record(current)
        return pixels
