"""How output lies on the disk, and how it makes room: with a real supd, runner, keeper and disk."""

import functools
import gzip
import stat
import subprocess
from pathlib import Path

from supervisor.logs import marks
from supervisor.logs.paths import generations, parts, stream_path
from tests.e2e.jobs import command_job, output
from tests.e2e.supd import BIN, Supd, wait_for

COUNT = 60_000
ROTATED = '[logs]\nmax_file = "64KiB"\nkeep_files = 100\n'


def started_with_umask(supd: Supd, job: Path, umask: str) -> str:
    script = f'umask {umask}; exec "$0" start "$1" --detach --quiet'
    command = ["/bin/sh", "-c", script, str(BIN / "supctl"), str(job)]
    return subprocess.run(command, env=supd.env, check=True, capture_output=True, text=True).stdout.strip()


def test_output_is_rotated_and_gzipped_and_readable_for_whom_the_submitters_umask_lets(supd: Supd) -> None:
    script = f"seq {COUNT}; touch {supd.folder}/wrote; until [ -e {supd.folder}/go ]; do sleep 0.05; done; echo end"
    run = started_with_umask(supd, command_job(supd, "count", ["/bin/sh", "-c", script], tables=ROTATED), "027")
    wait_for("the rank to write", (supd.folder / "wrote").exists)
    live = stream_path(Path(supd.status(run)["logs_dir"]), 0, 0, "out")
    wait_for("the keeper", lambda: len(parts(live)) >= 4 and all(part.is_gz for part in parts(live)[:-1]))
    (supd.folder / "go").touch()
    supd.wait_state(run, "succeeded")
    expected = "".join(f"{number}\n" for number in range(1, COUNT + 1)) + "end\n"
    pieces = [gzip.decompress(p.path.read_bytes()) if p.is_gz else p.path.read_bytes() for p in parts(live)]
    assert (b"".join(pieces) + live.read_bytes()).decode() == expected
    assert supd.supctl("logs", run, "-r", "0", "--no-prefix", "--tail", "all").stdout == expected
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in live.parent.iterdir()}
    assert modes == dict.fromkeys(modes, 0o640)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (live.parent, live.parent.parent)] == [0o750, 0o750]


def test_time_stamps_stand_in_the_file_where_the_job_wants_them(supd: Supd) -> None:
    job = command_job(supd, "dated", ["/bin/sh", "-c", "echo one; echo two"], tables="[logs]\ntimestamps = true")
    run = supd.start_job(job)
    supd.wait_state(run, "succeeded")
    lines = [line.split(" ", 1) for line in output(supd, run).decode().splitlines()]
    assert [text for _, text in lines] == ["one", "two"]
    assert all(len(when) == len("2026-11-29T09:41:00.113Z") and when.endswith("Z") for when, _ in lines)


def test_of_many_generations_those_are_kept_that_tell_most(supd: Supd) -> None:
    """The rank fails by itself in generation 1; after the others it is the operator who wants the next one."""
    script = f"""
echo begun
until [ -e {supd.folder}/go-$SUPD_GENERATION ]; do sleep 0.02; done
[ $SUPD_GENERATION = 5 ]
"""
    tables = """
[logs]
keep_generations = 3
[restart]
backoff = "0s"
on_startup_failure = "restart"
"""
    run = supd.start_job(command_job(supd, "often", ["/bin/sh", "-c", script], tables=tables))
    for generation in range(6):
        wait_for(f"generation {generation}", functools.partial(is_running, supd, run, generation))
        if generation in (1, 5):
            (supd.folder / f"go-{generation}").touch()
        else:
            supd.supctl("restart", run)
    logs_dir = Path(supd.wait_state(run, "succeeded")["logs_dir"])
    wait_for("the keeper", lambda: generations(logs_dir) == [0, 1, 5])
    assert [marks.has_failed(logs_dir, number) for number in (0, 1, 5)] == [False, True, False]
    raw = supd.supctl("logs", run, "-r", "0", "--gen", "3", "--raw")
    told = "the output of generation 3 is not kept any more ([logs] keep_generations)"
    assert (raw.stdout, raw.stderr.strip()) == ("", told)
    assert told.replace("generation 3", "generations 2-4") in supd.supctl("logs", run, "--gen", "all").stdout


def is_running(supd: Supd, run: str, generation: int) -> bool:
    status = supd.status(run)
    return bool(status["state"] == "running" and status["generation"] == generation)


def test_output_of_old_runs_makes_room_and_the_newest_stays(supd: Supd) -> None:
    runs = []
    for name in ("old", "new"):
        run = supd.start_job(command_job(supd, name, ["/bin/echo", f"said by {name}"]))
        logs_dir = Path(supd.wait_state(run, "succeeded")["logs_dir"])
        wait_for("the runner's end", functools.partial(has_ended, logs_dir))
        (logs_dir / "gen-0000" / "rank-00000.err").write_bytes(b"x" * (2 << 20))
        runs.append((run, logs_dir))
    (old, old_dir), (new, new_dir) = runs
    supd.kill()
    supd.config.write_text(supd.config.read_text().replace("[state]\n", '[state]\nmax_disk = "1MiB"\n'))
    supd.start()
    wait_for("room", lambda: not old_dir.exists())
    assert new_dir.exists()
    assert "said by new" in supd.supctl("logs", new, "--stream", "out").stdout
    ran = supd.supctl("logs", old, "--raw")
    assert (ran.stdout, "the output of this run is not kept any more" in ran.stderr) == ("", True)
    log = wait_for("the log", lambda: [line for line in supd.log.read_text().splitlines() if "disk_too_full" in line])
    assert len(log) == 1
    assert f'"{old}"' in next(line for line in supd.log.read_text().splitlines() if "output_removed" in line)


def has_ended(logs_dir: Path) -> bool:
    return any(logs_dir.glob("ended-*"))
