"""`kill -9` at twenty random moments of each long command. The same command then ends with the result of a whole run."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from soak.conftest import COMMANDS, Workshop, write_figures

MOMENTS = 20


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_is_resumed_to_the_same_result(
    name: str, moment: int, workshop: Workshop, whole: Callable[[str], tuple[Any, float]]
) -> None:
    expected, seconds = whole(name)
    after = random.Random(f"{name} {moment}").uniform(0.3, 1.0) * seconds
    out = workshop.folder / "killed" / f"{name}-{moment}"
    running = workshop.start(name, out)
    time.sleep(after)
    was_running = running.poll() is None
    os.killpg(running.pid, signal.SIGKILL) if was_running else None
    running.communicate()
    code, said, rest = workshop.run(name, out)
    assert code == 0, said
    assert "Traceback" not in said
    assert COMMANDS[name].read_result(out) == expected
    write_figures("kill", {"command": name, "killed_after": after, "was_running": was_running, "seconds_to_end": rest})
