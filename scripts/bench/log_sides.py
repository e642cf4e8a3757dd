"""The sides of scripts/bench/logs: where their workers' output ends up, and who follows it."""

import os
import py_compile
import shutil
import subprocess
import threading
from pathlib import Path

from fleets import parent_of
from sides import LIMIT_S, Floor, Side, Supd, Torchrun, cpu_s, now_s, wait_for

LINE_BYTES = 100
READY_BYTES = len("0 ready\n")
"""What log_worker.py writes; ranks have one digit."""

STILL_S = 5.0
"""Output that has not grown for so long is not going to."""


class Reader:
    """Reads a pipe to its end in a thread, and knows when what came."""

    def __init__(self, fd: int) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        self.last_s = 0.0
        self._fd = fd
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with open(self._fd, "rb", buffering=0) as pipe:
            while piece := pipe.read(1 << 20):
                self.last_s = now_s()
                self.pieces.append(piece)
                self.size += len(piece)

    def content(self) -> bytes:
        """All of it, after the end of who writes."""
        self._thread.join(10)
        return b"".join(self.pieces)


class LogSide:
    """One side, and what becomes of its workers' output."""

    def __init__(self, side: Side, *, has_follower: bool = False) -> None:
        self.side = side
        self.name = f"{side.name}, followed" if has_follower else side.name
        self._has_follower = has_follower
        self._go = side.folder / "go"
        self._follower: subprocess.Popen[bytes] | None = None
        self._reader: Reader | None = None
        self._old_bytes = 0
        self._runner = 0  # its pid, for supd
        py_compile.compile(str(Path(__file__).with_name("log_worker.py")), str(side.worker), doraise=True)

    def start(self, ranks: int, lines: int, *, is_buffered: bool) -> None:
        """Start the workers, which then wait for `go`, and who follows them."""
        side = self.side
        self._go.unlink(missing_ok=True)
        side.env |= {"BENCH_GO": str(self._go), "BENCH_LINES": str(lines), "BENCH_BUFFERED": "1" if is_buffered else ""}
        side.start(ranks)
        first = side.first_lines(ranks)
        self._reader = side.reader if isinstance(side, TorchrunTee) else self._follow(ranks)
        self._runner = parent_of(first[0].pid) if isinstance(side, Supd) else 0
        wait_for("the first lines in files", lambda: self._file_bytes(ranks) % (ranks * READY_BYTES) == 0)
        self._old_bytes = self._file_bytes(ranks)

    def _follow(self, ranks: int) -> Reader | None:
        if not self._has_follower:
            return None
        ours, childs = os.pipe()
        command = [
            str(self.side.commands / "supctl"),
            *["logs", "-f", "bench", "-r", "all", "--no-prefix", "-n", "all"],
        ]
        self._follower = subprocess.Popen(
            command, env=self.side.env, stdin=subprocess.DEVNULL, stdout=childs, start_new_session=True
        )
        os.close(childs)
        reader = Reader(ours)
        wait_for("the follower", lambda: reader.size >= ranks * READY_BYTES)
        return reader

    def go(self) -> None:
        """Let the workers write."""
        self._go.touch()

    def runner_cpu_s(self) -> float | None:
        """What supd's runner has used so far; None on another side."""
        return cpu_s(self._runner) if self._runner else None

    def wait_for_files(self, ranks: int, lines: int) -> float:
        """Wait until all lines are in files; when that was."""
        expected = self._old_bytes + ranks * lines * LINE_BYTES
        wait_for(f"the lines of {self.name} in files", lambda: self._file_bytes(ranks) >= expected)
        return now_s()

    def wait_for_follower(self, ranks: int, lines: int) -> float | None:
        """Wait until the follower has all lines, or gets no more of them; when it got the last one. None: nobody
        follows."""
        reader = self._reader
        if reader is None:
            return None
        expected = ranks * (lines * LINE_BYTES + READY_BYTES)
        wait_for("the follower", lambda: reader.size >= expected or now_s() - reader.last_s > STILL_S)
        if isinstance(self.side, TorchrunTee):  # its lines are longer, and some may be missing
            wait_for("the last line", lambda: now_s() - reader.last_s > STILL_S)
        return reader.last_s

    def followed(self) -> bytes:
        """All that the follower got; after `stop`."""
        return b"" if self._reader is None else self._reader.content()

    def files(self, ranks: int) -> list[Path]:
        """Where the workers' stdout is."""
        if isinstance(self.side, TorchrunTee):
            return list(self.side.log_dir.glob("*/attempt_0/*/stdout.log"))
        if isinstance(self.side, Floor):
            return [self.side.folder / f"rank-{rank}.out" for rank in range(ranks)]
        runs = (self.side.folder / "state" / "logs").glob("bench@*")
        newest = max(runs, key=lambda run: run.stat().st_ctime)
        return [path for path in newest.glob("gen-0000/rank-*.out*") if path.suffix != ".times"]

    def _file_bytes(self, ranks: int) -> int:
        return sum(path.stat().st_size for path in self.files(ranks))

    def stop(self) -> None:
        """End everything."""
        self.side.stop()
        if self._follower is not None:
            self._follower.wait(LIMIT_S)
            self._follower = None


class TorchrunTee(Torchrun):
    """torchrun that writes its workers' output to files, and reads those to write it to its own stdout."""

    name = "torchrun --tee"

    def __init__(self, commands: Path) -> None:
        super().__init__(commands)
        self.log_dir = self.folder / "logs"
        self.reader: Reader | None = None

    def _start(self, ranks: int) -> float:
        shutil.rmtree(self.log_dir, ignore_errors=True)
        ours, childs = os.pipe()
        options = ["--standalone", "--nproc-per-node", str(ranks), "--log-dir", str(self.log_dir)]
        command = [str(self.commands / "torchrun"), *options, "--redirects", "3", "--tee", "3", str(self.worker)]
        begun_s = now_s()
        with (self.folder / "torchrun.err").open("ab") as err:
            self._agent = subprocess.Popen(
                command,
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=childs,
                stderr=err,
                start_new_session=True,
            )
        os.close(childs)
        self.reader = Reader(ours)
        return begun_s
