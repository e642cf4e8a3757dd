"""What every bench does: options, a quiet machine, rounds in turn, medians and spread, a table or JSON."""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from install import ROOT, prepare
from sides import Floor, MeasurementFailed, Side, Supd, Torchrun, now_s, opened, pause

QUIET_SHARE = 0.08
"""Of all CPUs, what others may use for the machine to count as quiet."""

QUIET_WINDOW_S = 0.5
ROUNDS_MAX = 1000


class Options(argparse.Namespace):
    """The command line that all benches share."""

    rounds: int
    venv: Path
    json: bool
    torchrun: bool
    quiet_wait: float


def parser(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """The shared options; `rounds` is the default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=_count, default=rounds, help="measured rounds (default %(default)s)")
    parser.add_argument(
        "--venv",
        type=Path,
        default=ROOT / ".venv-bench",
        help="where supd and torch are installed (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, every sample included, and no table")
    parser.add_argument("--no-torchrun", dest="torchrun", action="store_false", help="measure without torchrun")
    parser.add_argument(
        "--quiet-wait",
        type=float,
        default=20.0,
        metavar="S",
        help="longest wait for a quiet machine before each start (default %(default)s)",
    )
    return parser


def _count(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= ROUNDS_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"not a number from 1 to {ROUNDS_MAX}: {text}")


def commands(options: Options) -> Path:
    """Install what is measured, where that has changed; returns the folder of its commands."""
    return prepare(options.venv.absolute(), with_torch=options.torchrun)


def run(main: Callable[[], int]) -> NoReturn:
    """The process: SIGTERM ends it in order, as Ctrl-C does, and a failed measurement in one line."""
    signal.signal(signal.SIGTERM, _end)
    try:
        sys.exit(main())
    except (MeasurementFailed, subprocess.SubprocessError) as exc:
        sys.exit(f"bench: error: {exc}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


# --- a quiet machine ---------------------------------------------------------------------------------------------


class Quiet:
    """Waits until others leave the machine alone, within bounds, and counts how often they did not."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self.waits = 0
        self.noisy = 0

    def wait(self) -> None:
        """Before each start: what the last one left behind (a ready runner is made, say) comes to rest here too."""
        self.waits += 1
        until_s = now_s() + self._wait_s
        while True:
            busy, total = _cpu_ticks()
            pause(QUIET_WINDOW_S)
            busy_now, total_now = _cpu_ticks()
            if busy_now - busy <= QUIET_SHARE * (total_now - total):
                return
            if now_s() >= until_s:
                self.noisy += 1
                return


def _cpu_ticks() -> tuple[int, int]:
    """Busy and all ticks of all CPUs so far. Niced work yields to ours and is not counted (proc_stat(5))."""
    user, nice, system, idle, iowait, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return user + system + sum(rest), user + nice + system + idle + iowait + sum(rest)


def rounds(
    options: Options,
    commands: Path,
    measure: Callable[[Side], float],
    kinds: Sequence[Callable[[Path], Side]] = (),
) -> "Samples":
    """`measure` every side in turn, again and again, after one round that warms the caches and is not counted."""
    quiet = Quiet(options.quiet_wait)
    samples = Samples()
    usual = [Supd, Torchrun, Floor] if options.torchrun else [Supd, Floor]
    with opened(commands, kinds or usual) as sides:
        for number in range(options.rounds + 1):
            for side in sides:
                quiet.wait()
                taken_s = measure(side)
                if number:
                    samples.of.setdefault(side.name, []).append(taken_s)
            progress(f"round {number} of {options.rounds}" if number else "caches are warm")
    samples.noisy, samples.starts = quiet.noisy, quiet.waits
    return samples


def progress(line: str) -> None:
    """Say how far it is, on stderr."""
    print(f"bench: {line}", file=sys.stderr, flush=True)


# --- the outcome -------------------------------------------------------------------------------------------------


@dataclass
class Samples:
    """Seconds, or whatever is measured, by name, in the order of the rounds."""

    of: dict[str, list[float]] = field(default_factory=dict)
    noisy: int = 0  # starts for which the machine did not get quiet
    starts: int = 0

    def median(self, name: str) -> float:
        """The median of one side."""
        return statistics.median(self.of[name])


@dataclass(frozen=True)
class Figure:
    """A bound that is to hold, and what was seen."""

    text: str
    seen: float
    bound: float
    unit: str
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        return self.seen >= self.bound if self.at_least else self.seen <= self.bound


@dataclass(frozen=True)
class Outcome:
    """One table."""

    title: str
    unit: str
    samples: Samples
    figures: Sequence[Figure]
    counted: str = "rounds"  # what there is one sample of


def report(options: Options, outcomes: Sequence[Outcome]) -> int:
    """Print the outcomes; the exit code is 1 where a figure is missed."""
    if options.json:
        print(json.dumps({"machine": _machine(), "outcomes": [_document(outcome) for outcome in outcomes]}, indent=1))
    else:
        print("\n\n".join(_table(outcome) for outcome in outcomes))
    return 0 if all(figure.is_met for outcome in outcomes for figure in outcome.figures) else 1


def _document(outcome: Outcome) -> dict[str, Any]:
    samples = outcome.samples
    return {
        "title": outcome.title,
        "unit": outcome.unit,
        "starts": samples.starts,
        "noisy_starts": samples.noisy,
        "medians": {name: samples.median(name) for name in samples.of},
        "samples": samples.of,
        "figures": [
            {"text": f.text, "seen": f.seen, "bound": f.bound, "at_least": f.at_least, "unit": f.unit, "met": f.is_met}
            for f in outcome.figures
        ],
    }


def _machine() -> dict[str, str | int | None]:
    return {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}


def _table(outcome: Outcome) -> str:
    machine, samples = _machine(), outcome.samples
    count = len(next(iter(samples.of.values())))
    floor = samples.median("floor") if "floor" in samples.of else None
    lines = [
        outcome.title,
        f"{count} {outcome.counted}, {machine['cpus']} CPUs, Python {machine['python']}, Linux {machine['kernel']}",
        "",
        f"{outcome.unit:<22}{'median':>10}{'min':>10}{'max':>10}"
        + (f"{'of floor':>12}{'over floor':>12}" if floor else ""),
    ]
    for name, values in samples.of.items():
        line = f"{name:<22}{samples.median(name):>10.3f}{min(values):>10.3f}{max(values):>10.3f}"
        if floor:
            line += f"{samples.median(name) / floor:>11.2f}x{samples.median(name) - floor:>+12.3f}"
        lines.append(line)
    lines.append("")
    for figure in outcome.figures:
        word = "at least" if figure.at_least else "at most"
        mark = "met   " if figure.is_met else "MISSED"
        lines.append(f"{mark}  {figure.text}: {figure.seen:.3f} {figure.unit}, {word} {figure.bound:.3f} {figure.unit}")
    if samples.noisy:
        lines.append(f"note    the machine was busy with something else at {samples.noisy} of {samples.starts} starts")
    return "\n".join(lines)


def against(samples: Samples, *, sooner: float, over_s: float, times: float) -> list[Figure]:
    """supd's figures: `sooner` times sooner than torchrun, and within `over_s` + `times` x the floor."""
    supd_s, floor_s = samples.median("supd"), samples.median("floor")
    figures = [
        Figure(f"within {over_s:g} s + {times:g} x floor", supd_s, over_s + times * floor_s, "s"),
    ]
    if "torchrun" in samples.of:
        figures.insert(
            0, Figure("sooner than torchrun", samples.median("torchrun") / supd_s, sooner, "x", at_least=True)
        )
    return figures
