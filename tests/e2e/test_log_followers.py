"""Who looks on at a run while supd is killed and comes back: nothing is missed, nothing comes twice."""

import functools
import json
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from supervisor.logs.paths import stream_path
from tests.e2e.supd import BIN, TIMEOUT_S, Supd, wait_for

FOLLOWERS = {
    "view": ("logs", "-f", "-r", "all", "-n", "all"),
    "lines": ("logs", "-f", "-r", "all", "-n", "all", "--no-prefix"),
    "raw": ("logs", "-f", "-r", "1", "-n", "all", "--raw"),
    "json": ("logs", "-f", "-r", "all", "-n", "all", "--json"),
    "tail": ("logs", "-f", "-r", "0", "-n", "1", "--no-prefix"),
    "events": ("events", "-f"),
    "wait": ("wait",),
}


@dataclass
class Follower:
    """A call of supctl whose streams are files."""

    process: "subprocess.Popen[bytes]"
    out: Path
    err: Path

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def told(self) -> list[str]:
        """What it said of supd."""
        lines = (line.partition(":")[0] for line in self.err.read_text().splitlines())
        return [line for line in lines if line in ("… waiting for supd to be back", "… supd is back")]


@contextmanager
def following(supd: Supd, name: str, *args: str) -> Iterator[Follower]:
    """A call of supctl that is ended in any case."""
    out, err = supd.folder / f"{name}.out", supd.folder / f"{name}.err"
    with out.open("wb") as to_out, err.open("wb") as to_err:
        process = subprocess.Popen(
            [str(BIN / "supctl"), *args],
            env=supd.env,
            stdin=subprocess.DEVNULL,
            stdout=to_out,
            stderr=to_err,
            cwd=supd.folder,
        )
        try:
            yield Follower(process, out, err)
        finally:
            process.kill()
            process.wait(TIMEOUT_S)


def by_rank(lines: Iterable[str]) -> dict[int, list[str]]:
    """Lines of the counter, by the rank that they name."""
    found: dict[int, list[str]] = defaultdict(list)
    for line in lines:
        found[int(line.split()[1])].append(line)
    return dict(found)


def test_followers_live_through_two_deaths_of_supd(supd: Supd) -> None:
    run = supd.start_job(supd.job("count", "counter.py", str(supd.folder)))
    supd.wait_state(run, "running")
    logs = Path(supd.status(run)["logs_dir"])

    def written(rank: int) -> list[str]:
        return stream_path(logs, 0, rank, "out").read_text().splitlines()

    def has_grown(lines: int) -> bool:
        return len(written(0)) > lines

    wait_for("both ranks to write", lambda: all(stream_path(logs, 0, rank, "out").exists() for rank in (0, 1)))
    told: list[str] = []
    with ExitStack() as stack:
        started = {name: stack.enter_context(following(supd, name, *args, run)) for name, args in FOLLOWERS.items()}
        wait_for(
            "all to follow", lambda: all(one.out.stat().st_size for one in started.values() if one.out.stem != "wait")
        )
        wait_for("the wait to begin", lambda: "running" in started["wait"].err.read_text())
        for said in ("… waiting for supd to be back", "… supd is back") * 2:
            if "waiting" in said:
                supd.kill()
            else:
                supd.start()
            told.append(said)
            wait_for("ranks to go on", functools.partial(has_grown, len(written(0)) + 20))
            wait_for("all to say so once", lambda: all(one.told() == told for one in started.values()))
        (supd.folder / "enough").touch()
        codes = {name: follower.process.wait(TIMEOUT_S) for name, follower in started.items()}
    assert codes == dict.fromkeys(FOLLOWERS, 0)
    every = {rank: written(rank) for rank in (0, 1)}
    assert by_rank(started["lines"].lines()) == every
    *view, last = started["view"].lines()
    assert by_rank(line.partition("│ ")[2] for line in view if " line " in line) == every
    assert last.startswith(f"── {run} succeeded")
    assert started["raw"].lines() == every[1]
    tail = started["tail"].lines()
    assert tail == every[0][-len(tail) :]
    found = [json.loads(line) for line in started["json"].lines()]
    assert by_rank(line["line"] for line in found) == every
    for rank in (0, 1):
        own = [line for line in found if line["rank"] == rank]
        assert [line["seq"] + len(line["line"]) + 1 for line in own[:-1]] == [line["seq"] for line in own[1:]]
        assert {line["local_rank"] for line in own} == {rank}
    kinds = [line.split()[2] for line in started["events"].lines()[1:]]
    assert (len(kinds), kinds[-1]) == (len({*kinds}), "job.succeeded"), kinds


def test_a_start_that_is_followed_ends_with_the_outcome_though_supd_died(supd: Supd) -> None:
    job = supd.job("count", "counter.py", str(supd.folder))
    with following(supd, "start", "start", str(job), "--follow") as follower:
        wait_for("a line", lambda: "rank 0 line" in follower.out.read_text())
        supd.kill()
        wait_for("it to be missed", lambda: follower.told() != [])
        supd.start()
        wait_for("it to go on", lambda: len(follower.told()) == 2)
        (supd.folder / "enough").touch()
        assert follower.process.wait(TIMEOUT_S) == 0, follower.err.read_text()
    numbers = [int(line.split()[-1]) for line in follower.lines() if "rank 0 line" in line]
    assert numbers == list(range(len(numbers)))
    assert follower.err.read_text().splitlines()[-1].startswith("✓ count@")


def test_who_follows_from_the_start_is_not_told_that_output_is_missing(supd: Supd) -> None:
    (supd.folder / "enough").touch()
    followed = supd.supctl("start", str(supd.job("count", "counter.py", str(supd.folder))), "--follow")
    assert "rank 0 line 0" in followed.stdout
    assert "not kept" not in followed.stdout + followed.stderr
