"""What `import supd` gives to a training script. It runs inside of that, on Python 3.8 and newer.

The first process of a rank that beats owns its page. Others that got the same environment (data loaders, say) are
silent while it lives: a helper must not keep a hanging rank alive.
"""

from __future__ import annotations

import itertools
import mmap
import os
import time

from . import page

LOOK_AGAIN_S = 1.0
"""How often a process that does not own the page looks whether its owner has ended."""

_COUNT_MAX = 2**63 - 1
"""What a word takes; whoever wrote to the page before may have counted further."""

_NOBODY = -1
"""No pid, with flags or without."""


class Writer:
    """Writes to the page at `path`; outside supd to one that nobody reads. Threads may share it.

    A page is mapped once and never let go of. Python keeps a descriptor of what it maps; a program that has closed
    every descriptor (daemons do) may use its number for another file by the time we would close it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._page: memoryview | None = None
        self._words = memoryview(bytearray(page.SIZE)).cast("q")
        self._mine = _NOBODY  # OWNER's word for as long as the page is ours and not done
        self._next = itertools.count(1).__next__  # one call that no other thread can break into
        self._phase = ""
        self._look_at_s = 0.0

    def beat(self, step: object = None) -> None:
        """Tell that the training moves on; `step` is the number of the step that was done, and ends a phase.

        What is no number below 2**63 is left out; a negative one shows as none.
        """
        if self._words[page.OWNER] != self._mine and not self._claim():
            return
        if step is not None:
            if self._phase:
                self._show("")
            try:  # noqa: SIM105  # the other form takes longer than all the rest
                self._words[page.STEP] = step  # type: ignore[call-overload]  # anything that has __index__
            except Exception:  # whatever that raises: a training must not end by it
                pass
        self._words[page.COUNT] = self._next()  # last: docs/heartbeat.md, "Order of the stores"

    def phase(self, name: str) -> Phase:
        """Tell what is going on from now on, until the next phase or the next beat with a step; "" for nothing special.

        What it returns may be used in a `with`, and goes back to the phase before at its end.
        """
        before = self._phase
        if isinstance(name, str):
            self._declare(name)
        return Phase(self, before)

    def done(self) -> None:
        """Tell that no more beats will come. One that comes nevertheless takes it back."""
        if self._words[page.OWNER] == self._mine or self._claim():
            self._words[page.OWNER] = self._mine | page.DONE << page.FLAGS_SHIFT
            self._words[page.COUNT] = self._next()

    def leave(self) -> None:
        """In a child after a fork: the page is the parent's."""
        self._mine = _NOBODY
        self._phase = ""

    def _declare(self, name: str) -> None:
        if self._words[page.OWNER] == self._mine or self._claim():
            self._show(name)
            self._words[page.COUNT] = self._next()

    def _show(self, name: str) -> None:
        assert self._page is not None
        self._phase = name
        self._page[page.PHASE] = page.phase_field(name)

    def _claim(self) -> bool:
        """Make the page ours, and no longer done; False while another process has it."""
        now_s = time.monotonic()  # noqa: TID251  # this process is not ours
        if now_s < self._look_at_s:
            return False
        if self._page is None:
            self._page = _mapped(self._path)
            self._words = self._page.cast("q")
        owner, pid = self._words[page.OWNER] & 0xFFFFFFFF, os.getpid()
        if owner not in (0, pid) and _is_alive(owner):
            self._look_at_s = now_s + LOOK_AGAIN_S
            return False
        if owner != pid:
            self._show("")  # the phase of a process that has ended has ended too
        self._next = itertools.count((self._words[page.COUNT] + 1) & _COUNT_MAX).__next__
        self._words[page.OWNER] = self._mine = pid  # of two that do this at once, one loses it and sees that here
        return True


class Phase:
    """A phase that ends with its `with` block."""

    def __init__(self, writer: Writer, before: str) -> None:
        self._writer = writer
        self._before = before

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._writer._declare(self._before)


def _mapped(path: str) -> memoryview:
    """The page at `path`, mapped; a private one where there is none, or none that we know how to write."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if page.is_known(os.pread(descriptor, page.SIZE + 1, 0)):
                return memoryview(mmap.mmap(descriptor, page.SIZE))
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        pass
    return memoryview(bytearray(page.SIZE))


def _is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not reaped yet does not (proc_pid_stat(5))."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (ProcessLookupError, OverflowError):  # no pid is that large
        return False
    except OSError:  # another user's, or there is no /proc
        return True


_writer = Writer(os.environ.get("SUPD_HEARTBEAT", ""))
os.register_at_fork(after_in_child=_writer.leave)

beat = _writer.beat
phase = _writer.phase
done = _writer.done
