"""A real suprun for tests: own key, own marker, nothing left behind."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.e2e.supd import BIN, MARKER, TIMEOUT_S, WORKERS, carriers, wait_for

NOT_OURS = ("PYTHON", "SUPD_", "SLURM", "PET_", "TORCH", "OMP_")
"""Of the environment: what would change what suprun does."""

FOR_EVER = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600"}
"""Of a launch that does not heed its --shutdown-timeout the end is not waited for."""


class Suprun:
    """One suprun, on one node of a job."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        env: Mapping[str, str] | None = None,
        argv: Sequence[str] = (),
        program: str = str(BIN / "suprun"),
    ) -> None:
        """`argv` goes in front of the command line; `program` is what is started in suprun's place."""
        self.folder = folder
        self.output = folder / f"out-{os.urandom(4).hex()}"
        self.marker = f"{os.getpid()}-{self.output.name}"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(NOT_OURS)}
        self.env |= {"XDG_CONFIG_HOME": str(folder / "config"), MARKER: self.marker, **(env or {})}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*argv, program, *words],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
            )

    @property
    def text(self) -> str:
        """All that it has shown until now."""
        return self.output.read_text()

    def wait_for(self, pattern: str, count: int = 1) -> list[str]:
        """Wait until so many places of its output match."""

        def look() -> list[str] | None:
            found = re.findall(pattern, self.text)
            assert len(found) >= count or self.process.poll() is None, self.text
            return found if len(found) >= count else None

        return wait_for(f"{pattern!r} in {self.output}", look)

    def end(self) -> int:
        """Wait for its end; returns what it ended with."""
        return self.process.wait(TIMEOUT_S)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def left(self) -> list[int]:
        """Processes of it that live."""
        return carriers(self.marker)

    def footprints(self) -> list[Path]:
        """Folders and cgroups that it has, now."""
        return footprints(self.left())

    def wait_until_nothing_is_left(self) -> None:
        """Every process of it has ended."""
        wait_for("nothing to be left", lambda: not self.left())

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(TIMEOUT_S)
        with contextlib.suppress(AssertionError):
            wait_for("the guard to sweep", lambda: not self.left(), timeout_s=10)
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Launches:
    """Starts supruns in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[Suprun] = []

    def __call__(self, *words: str, env: Mapping[str, str] | None = None, argv: Sequence[str] = ()) -> Suprun:
        """One more."""
        self.all.append(Suprun(self.folder, *words, env=env, argv=argv))
        return self.all[-1]

    def shell(self, line: str, *, env: Mapping[str, str] | None = None, argv: Sequence[str] = ()) -> Suprun:
        """What a shell makes of a line, in which suprun, supctl and supd are those of the test."""
        path = {"PATH": f"{BIN}:{os.environ['PATH']}", **(env or {})}
        self.all.append(Suprun(self.folder, "-c", line, env=path, argv=argv, program="bash"))
        return self.all[-1]


@contextlib.contextmanager
def launching(folder: Path) -> Iterator[Launches]:
    """What is started is ended with the block."""
    launches = Launches(folder)
    try:
        yield launches
    finally:
        for one in launches.all:
            one.close()


def footprints(pids: Iterable[int]) -> list[Path]:
    """Folders and cgroups that processes of a suprun have, now."""
    found: set[Path] = set()
    for link in [link for pid in pids for link in Path(f"/proc/{pid}/fd").glob("*")]:
        with contextlib.suppress(OSError):
            file = Path(os.readlink(link))
            found |= {folder for folder in file.parents if re.fullmatch(r"suprun-\w{8}(-output)?", folder.name)}
            if file.suffix == ".lock" and (group := file.read_text()).startswith("/"):
                found.add(Path(group))
    return [*found]


def worker(name: str) -> str:
    """The path of a worker script."""
    return str(WORKERS / f"{name}.py")
