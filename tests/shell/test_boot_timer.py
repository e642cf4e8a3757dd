"""supervisor/shell/boot_timer.py: a descriptor that wakes up who waits for it."""

import os
import select

from supervisor.shell.boot_timer import BootTimer
from supervisor.shell.clock import boot_s

TIMEOUT_MS = 15_000


def test_a_timer_is_readable_from_its_time_on_until_another_one_is_set() -> None:
    timer, events = BootTimer(), select.poll()
    events.register(timer.fd, select.POLLIN)
    try:
        at_s = boot_s() + 0.05
        timer.set(at_s)
        assert events.poll(TIMEOUT_MS)
        assert boot_s() > at_s - 1e-6
        assert events.poll(0), "it still is"
        timer.set(boot_s() + 60)
        assert not events.poll(0)
        timer.set(1.0)  # long ago
        assert events.poll(TIMEOUT_MS)
        timer.set(None)
        assert not events.poll(0)
    finally:
        os.close(timer.fd)
