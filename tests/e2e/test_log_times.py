"""When lines were written, as `supctl logs` shows it and chooses by it: with a real supd, runner and disk."""

import json
import os
from datetime import datetime
from pathlib import Path

from supervisor.logs.paths import stream_path
from supervisor.shell.clock import wall_s
from tests.e2e.jobs import command_job
from tests.e2e.supd import TIMEOUT_S, Supd, wait_for

ONE_RESTART = '[restart]\nbackoff = "0s"\nmax_restarts = 1\non_startup_failure = "restart"\n[stop]\ngrace = "5s"'


def lines(supd: Supd, *args: str) -> list[tuple[float | None, str]]:
    """(when, what) of each line that `supctl logs --json` gives."""
    items = [json.loads(line) for line in supd.supctl("logs", *args, "--json").stdout.splitlines()]
    return [(datetime.fromisoformat(item["ts"]).timestamp() if item["ts"] else None, item["line"]) for item in items]


def test_lines_are_found_by_time_and_pattern_over_all_generations(supd: Supd) -> None:
    begin_s = wall_s() - 0.001  # what is shown is rounded
    run = supd.start_job(supd.job("talk", "talker.py", str(supd.folder), tables=ONE_RESTART))
    wait_for("both ranks to begin", lambda: len(lines(supd, run, "-r", "all")) == 2)
    between_s = wall_s()
    (supd.folder / "go-0").touch()
    wait_for("the second generation", lambda: len(lines(supd, run, "--grep", "generation 1")) == 2)
    (supd.folder / "go-1").touch()
    supd.wait_state(run, "succeeded")
    every = lines(supd, run, "-r", "all", "--gen", "all")
    times = [read_s for read_s, _ in every if read_s is not None]
    assert len(times) == len(every) >= 7  # one rank of the first generation may be stopped before its last line
    assert times == sorted(times)
    assert begin_s <= times[0]
    assert times[-1] <= wall_s() + 0.001
    cut = ("-r", "all", f"{datetime.fromtimestamp(between_s).astimezone().isoformat()}")
    later = lines(supd, run, *cut[:2], "--since", cut[2])
    earlier = lines(supd, run, *cut[:2], "--until", cut[2])
    assert sorted(text for _, text in earlier) == [f"generation 0 rank {rank} begins" for rank in (0, 1)]
    assert earlier + later == every
    assert [text for _, text in lines(supd, run, "--grep", r"rank 0 (begins|ends)$")] == [
        f"generation {generation} rank 0 {what}" for generation in (0, 1) for what in ("begins", "ends")
    ]
    raw = supd.supctl("logs", run, "--gen", "1", "-r", "0", "--no-prefix").stdout
    assert raw == "generation 1 rank 0 begins\ngeneration 1 rank 0 ends\n"


RELAY = """
say() { echo "generation $SUPD_GENERATION rank $RANK $1"; }
mark="$0/rank-1-of-$SUPD_GENERATION"
say begins
if [ "$RANK" = 1 ]; then
    trap 'say stops >&2; exit 1' TERM
    touch "$mark"
    while [ "$SUPD_GENERATION" != 2 ]; do sleep 0.05; done
fi
until [ -e "$mark" ]; do sleep 0.02; done
say ends >&2
[ "$SUPD_GENERATION" = 2 ]
"""


def test_what_the_supervisor_did_stands_among_the_output_where_it_was_done(supd: Supd) -> None:
    tables = ONE_RESTART.replace("max_restarts = 1", "max_restarts = 2")
    job = command_job(supd, "relay", ["/bin/sh", "-c", RELAY, str(supd.folder)], nproc=2, tables=tables)
    run = supd.start_job(job)
    following = supd.popen("logs", "-f", run, "--gen", "all", "-r", "all")
    followed, _ = following.communicate(timeout=TIMEOUT_S)
    supd.wait_state(run, "succeeded")
    past = supd.supctl("logs", run, "--gen", "all", "-r", "all").stdout
    dated = supd.supctl("logs", run, "--gen", "all", "-r", "all", "--timestamps").stdout
    assert [line.partition(" ")[2] for line in dated.splitlines() if "─" not in line] == [
        line for line in past.splitlines() if "─" not in line
    ]
    for story in (past, followed):
        parts = story.split("── generation ")[1:]
        assert [part.partition("\n")[0] for part in parts] == [f"{number} · 2 ranks ──" for number in range(3)]
        for number, part in enumerate(parts):
            says = [f"│ generation {number} rank 0 begins", f"┃ generation {number} rank 0 ends"]
            if number == 2:
                assert in_order(part, *says, "sup │ job succeeded", " succeeded: every rank ended with 0 ──")
                continue
            goes_on = f"sup │ restart decided: restart {number + 1} of 2"
            over = [f"┃ generation {number} rank 1 stops", f"sup │ generation {number} ended", goes_on]
            assert in_order(part, *says, *over)
            opened = "sup │ incident opened: rank 0 "
            if story is followed and opened not in part:  # it came while we looked on
                opened = f"sup │ incident #{number + 1}\n"
            assert in_order(part, *says, opened, *over[1:])


def in_order(text: str, *parts: str) -> bool:
    """Whether all of these stand in the text, one behind the other, each where it stands first."""
    places = [text.find(part) for part in parts]
    assert -1 not in places, f"{parts} in\n{text}"
    assert places == sorted(places), f"{parts} in\n{text}"
    return True


def test_a_log_of_ten_megabytes_is_searched_in_bounded_memory(supd: Supd) -> None:
    run = supd.start_job(supd.job("flood", "talker.py", str(supd.folder), nproc=1))
    for generation in (0, 1):
        (supd.folder / f"go-{generation}").touch()
    supd.wait_state(run, "succeeded", "failed")
    path = stream_path(Path(supd.status(run)["logs_dir"]), 0, 0, "out")
    with path.open("ab") as file:
        file.write(
            b"".join(b"line %07d of very many, all of them alike but one\n" % number for number in range(200_000))
        )
        file.write(b"the needle\n")
    before_kib = peak_kib(supd)
    assert supd.supctl("logs", run, "--grep", "needle", "--no-prefix").stdout == "the needle\n"
    assert peak_kib(supd) - before_kib < 32 << 10


def peak_kib(supd: Supd) -> int:
    """The most memory that the daemon has ever held."""
    assert supd.process is not None
    status = Path(f"/proc/{supd.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1])


def test_lines_of_a_file_without_an_index_are_shown_without_a_time(supd: Supd) -> None:
    run = supd.start_job(supd.job("talk", "talker.py", str(supd.folder), nproc=1))
    for generation in (0, 1):
        (supd.folder / f"go-{generation}").touch()
    supd.wait_state(run, "succeeded")
    os.unlink(f"{stream_path(Path(supd.status(run)['logs_dir']), 1, 0, 'out')}.times")
    shown = lines(supd, run, "--since", "1ms")
    assert shown == [(None, "generation 1 rank 0 begins"), (None, "generation 1 rank 0 ends")]
    assert " " * 12 + " 0 │ generation 1 rank 0 begins" in supd.supctl("logs", run, "--timestamps").stdout
