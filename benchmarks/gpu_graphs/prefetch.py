"""Upload the next pictures while the GPU works on these: a copy stream, and 8 bits per value.

prefetcher.send(first)
for images in others:
    block = textures.update(prefetcher.take())
    prefetcher.send(images)                    # copied while the graph above runs
    ...
"""

from __future__ import annotations

import torch

from arr_coc.errors import ArrCocError


class Prefetcher:
    """Copies pictures uint8 `[B, 3, H, W]` from the host, one batch at a time."""

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
        """Start the copy; waits only until the host buffer of the previous copy is free."""
        if images.shape != self._host.shape or images.dtype != torch.uint8:
            raise ArrCocError(
                f"expected pictures uint8 {list(self._host.shape)}, got {str(images.dtype).removeprefix('torch.')} "
                f"{list(images.shape)}"
            )
        if self._waiting:
            raise ArrCocError("expected `take` before the next `send`")
        if self._stream is None:
            self._sent.copy_(images)
        else:
            assert self._arrived is not None
            assert self._taken is not None
            self._arrived.synchronize()  # the host buffer is free again
            self._host.copy_(images)
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(self._taken)  # so is the device buffer
                self._sent.copy_(self._host, non_blocking=True)
                self._arrived.record(self._stream)
        self._waiting = True

    def take(self) -> torch.Tensor:
        """The copied pictures, float32 in [0, 1], for work on the current stream."""
        if not self._waiting:
            raise ArrCocError("expected `send` before `take`: no copy was started")
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
