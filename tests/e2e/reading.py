"""What supctl logs gives: as bytes at once, or of one that follows, piece by piece."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.supd import BIN, TIMEOUT_S, Supd, wait_for


def logs(supd: Supd, *args: str) -> bytes:
    """What `supctl logs` prints."""
    done = subprocess.run(
        [*supd.argv, str(BIN / "supctl"), "logs", *args],
        env=supd.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=supd.folder,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def raw(supd: Supd, run: str, rank: int = 0, stream: str = "out") -> bytes:
    """All that a rank has written to a stream, in all generations, byte for byte."""
    return logs(supd, run, "-r", str(rank), "--stream", stream, "--gen", "all", "-n", "all", "--raw")


def records(supd: Supd, run: str, *args: str) -> list[dict[str, Any]]:
    """The lines of `supctl logs --json`, all of them unless `args` say otherwise."""
    return [json.loads(line) for line in logs(supd, run, "-n", "all", "--json", *args).splitlines()]


class Follower:
    """A `supctl logs -f` that writes into files. Its end is `close`'s, at the latest."""

    def __init__(self, supd: Supd, folder: Path, name: str, *args: str) -> None:
        self._out, self._err = folder / f"{name}.stdout", folder / f"{name}.stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*supd.argv, str(BIN / "supctl"), "logs", "-f", *args],
                env=supd.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=supd.folder,
            )

    def seen(self) -> bytes:
        """What it has printed so far."""
        return self._out.read_bytes()

    def told(self) -> str:
        """What it has said besides, on stderr."""
        return self._err.read_text()

    def until(self, what: str, is_so: Callable[[bytes], bool]) -> bytes:
        """Wait until what it has printed is so; returns that."""

        def look() -> bytes | None:
            seen = self.seen()
            if is_so(seen):
                return seen
            assert self.process.poll() is None, f"it ended without {what}: {seen[-2000:]!r} {self.told()}"
            return None

        return wait_for(what, look)

    def until_has(self, text: bytes) -> bytes:
        """Wait until it has printed this."""
        return self.until(repr(text), lambda seen: text in seen)

    def rest(self) -> bytes:
        """Wait for its end, which is to be a good one; all that it has printed."""
        assert self.process.wait(TIMEOUT_S) == 0, self.told()
        return self.seen()

    def peak_kib(self) -> int:
        """The most memory it has had so far (VmHWM)."""
        return peak_kib(self.process.pid)

    def close(self) -> None:
        """End it, if it has not ended."""
        self.process.kill()
        self.process.wait()


def peak_kib(pid: int) -> int:
    """The most memory that a process has had so far (VmHWM, proc_pid_status(5))."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])
