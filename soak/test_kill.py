"""`kill -9` at twenty random moments of each long command. The same command then ends with the result of a whole run.

A quarter of the moments lies before a command first keeps what is done, the others after it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable

import pytest

from soak.conftest import COMMANDS, WholeRun, Workshop, write_figures

MOMENTS = 20
EARLY = 5  # of them before the first state


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_is_resumed_to_the_same_result(
    name: str, moment: int, workshop: Workshop, whole: Callable[[str], WholeRun]
) -> None:
    undisturbed = whole(name)
    draw = random.Random(f"{name} {moment}")
    out = workshop.folder / "killed" / f"{name}-{moment}"
    wait = draw.uniform(0.0, undisturbed.before if moment < EARLY else undisturbed.after)
    while True:
        begun = time.monotonic()
        running = workshop.start(name, out)
        if moment >= EARLY:
            workshop.wait_for_state(name, out, running)
        time.sleep(wait)
        if running.poll() is None:
            break
        running.communicate()  # this run was faster than the undisturbed one and ended before it was killed
        shutil.rmtree(out)
        wait *= 0.7
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    killed_after, had_state = time.monotonic() - begun, bool(workshop.find_state(name, out))
    code, said, rest = workshop.run(name, out)
    assert code == 0, said
    assert "Traceback" not in said
    assert COMMANDS[name].read_result(out) == undisturbed.result
    write_figures(
        "kill",
        {
            "command": name, "moment": moment, "killed_after_s": round(killed_after, 2), "had_state": had_state,
            "seconds_to_end": round(rest, 2),
        },
    )  # fmt: skip
