"""The page of memory from which a guard learns when the lease of its runner's ranks ends (docs/decisions/001).

The guard makes it, and hands it to the runner; the runner writes it, and hands it to a guard that replaces the first.
The time is stored and loaded as one aligned word: nobody sees half of one and half of another. Nothing here waits, and
nothing comes by a message that one of the two, stopped for a while, would find late in a queue.
"""

import contextlib
import mmap
import os

from supervisor.shell.clock import boot_s

_PAGE_BYTES = 8  # one double: boot-time seconds; 0: there is no lease


class LeasePage:
    """When the lease ends, and the eventfd that wakes up a guard which may sleep for longer than that."""

    def __init__(self, page_fd: int, poke_fd: int) -> None:
        self.page_fd = page_fd
        self.poke_fd = poke_fd
        self._until_s = memoryview(mmap.mmap(page_fd, _PAGE_BYTES)).cast("d")

    @classmethod
    def make(cls) -> "LeasePage":
        """A new one, without a lease. Its descriptors are closed by an exec."""
        page_fd = os.memfd_create("supd-lease")
        os.ftruncate(page_fd, _PAGE_BYTES)
        return cls(page_fd, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def left_s(self) -> float | None:
        """How long the lease goes on, by the clock as it is now: 0 or less where it is over; None: there is none."""
        until_s = self._until_s[0]
        return until_s - boot_s() if until_s else None

    @property
    def is_over(self) -> bool:
        """Whether there is a lease, and it has ended."""
        left_s = self.left_s()
        return left_s is not None and left_s <= 0

    def hold(self, until_s: float | None) -> None:
        """For the runner: the lease ends then; None: there is none. The guard looks by itself once a second while there
        is one, so it is woken up only for one that begins, or that ends sooner."""
        before_s = self._until_s[0]
        self._until_s[0] = until_s or 0.0
        if until_s is not None and (not before_s or until_s < before_s):
            with contextlib.suppress(BlockingIOError):  # it has been woken up 2**64 times, and has never looked
                os.eventfd_write(self.poke_fd, 1)

    def take_poke(self) -> None:
        """For the guard: it has been woken up."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.poke_fd)
