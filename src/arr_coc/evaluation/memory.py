"""The most memory that a stretch of work had at once: the device's where there is one, else the process's."""

from __future__ import annotations

from pathlib import Path

import torch

_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


class Meter:
    """Counts from its making on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._counts = device.type == "cuda"
        if self._counts:
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            _RESET.write_text("5")  # forget the peak so far
            self._counts = True
        except OSError:  # not Linux, or not allowed
            pass

    def peak(self) -> float | None:
        """MB at most since then, model and all; None where the system does not tell."""
        if not self._counts:
            return None
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        found = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM")]
        return int(found[0].split()[1]) / 1024 if found else None
