"""suprun on one node: what torchrun's users see, and what they don't have to see any more."""

import contextlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.e2e.supd import alive, wait_for
from tests.e2e.suprun import FOR_EVER, Launches, Suprun, worker

LAUNCHED = worker("launched")


def named_by(pid: int) -> str:
    """The name that a process goes by."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def named(launch: Suprun, name: str) -> list[int]:
    """Processes of a launch that go by this name."""
    return [pid for pid in launch.left() if named_by(pid) == name]


def test_ranks_run_with_torchruns_contract_and_their_output_is_shown_as_it_is(suprun: Launches) -> None:
    launch = suprun("--standalone", "--nproc-per-node=2", LAUNCHED)
    assert launch.end() == 0
    lines = sorted(line for line in launch.text.splitlines() if line.startswith("up "))
    assert len(lines) == 2
    for rank, line in enumerate(lines):
        told = re.sub("MASTER_PORT=[0-9]+", "MASTER_PORT=P", line)
        assert re.sub("RUN_ID=[0-9a-f]{32}", "RUN_ID=I", told) == (
            f"up RANK={rank} LOCAL_RANK={rank} WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=P "
            "TORCHELASTIC_RUN_ID=I TORCHELASTIC_RESTART_COUNT=0"
        )
    assert len(set(re.findall("RUN_ID=([0-9a-f]+)", launch.text))) == 1
    assert sorted(launch.text.splitlines()) == ["done 0", "done 1", *lines]
    assert launch.left() == []


@pytest.mark.parametrize(("word", "code"), [("exit:1:33", 33), ("exit:0:2", 2)])
def test_suprun_ends_with_the_code_of_the_rank_that_failed(suprun: Launches, word: str, code: int) -> None:
    launch = suprun("--standalone", "--nproc-per-node=2", LAUNCHED, "sleep", word)
    assert launch.end() == code
    assert f"exited with code {code}" in launch.text


def test_a_failed_rank_brings_a_restart_of_all_where_one_is_allowed(suprun: Launches) -> None:
    launch = suprun("--standalone", "--nproc-per-node=2", "--max-restarts=1", LAUNCHED, "exit:1:3", "once")
    assert launch.end() == 0
    assert len(re.findall("RESTART_COUNT=1", launch.text)) == 2


def test_whoever_kills_suprun_leaves_nothing_of_the_job(suprun: Launches) -> None:
    launch = suprun("--standalone", "--nproc-per-node=2", LAUNCHED, "sleep", "family", "deaf")
    launch.wait_for("up RANK", 2)
    left = launch.footprints()
    assert len(left) >= 2, "a folder for the state, and one for the output"
    launch.signal(signal.SIGKILL)
    launch.end()
    launch.wait_until_nothing_is_left()
    assert [path for path in left if path.exists()] == []


def test_whoever_kills_suprun_and_its_guard_leaves_nothing_either(suprun: Launches) -> None:
    launch = suprun("--standalone", LAUNCHED, "sleep", "family")
    launch.wait_for("up RANK")
    guards = named(launch, "supd-guard")
    assert guards
    for pid in guards:
        os.kill(pid, signal.SIGKILL)
    launch.signal(signal.SIGKILL)
    launch.end()
    launch.wait_until_nothing_is_left()


def test_whoever_kills_all_that_names_suprun_or_the_script_leaves_nothing_either(suprun: Launches) -> None:
    launch = suprun("--standalone", "--nproc-per-node=2", LAUNCHED, "sleep", "family")
    launch.wait_for("up RANK", 2)
    hit = [pid for pid in launch.left() if b"launched.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len({*hit, *named(launch, "suprun")}) == 3, "itself, and its ranks"
    for pid in hit:
        with contextlib.suppress(ProcessLookupError):  # a rank ends with its runner
            os.kill(pid, signal.SIGKILL)
    launch.end()
    launch.wait_until_nothing_is_left()


def test_guard_and_runner_have_nothing_of_what_suprun_was_called_with(suprun: Launches) -> None:
    launch = suprun.shell(f"exec 9>held; exec suprun --standalone {LAUNCHED} sleep", env={"SUPD_RUNNER": "another"})
    launch.wait_for("up RANK")
    (guard,), (runner,) = named(launch, "supd-guard"), named(launch, "supd-runner")
    assert {os.getsid(guard), os.getsid(runner)} == {guard}
    for pid in (guard, runner):
        links = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
        assert not any(link.startswith(str(suprun.folder.resolve())) for link in links)
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert b"SUPD_RUNNER=another" not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    launch.signal(signal.SIGTERM)
    assert launch.end() == 143


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_suprun_works_where_standard_files_are_closed(suprun: Launches, closed: str) -> None:
    launch = suprun.shell(f"suprun --standalone --nproc-per-node=2 {LAUNCHED} {closed}")
    assert launch.end() == 0
    launch.wait_until_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_job_gracefully_and_the_code_says_which(suprun: Launches, number: signal.Signals) -> None:
    launch = suprun("--standalone", "--nproc-per-node=2", "--shutdown-timeout=60", LAUNCHED, "sleep")
    launch.wait_for("up RANK", 2)
    launch.signal(number)
    assert launch.end() == 128 + number
    assert f"{number.name}: the job is stopped, SIGKILL in 60 s" in launch.text
    assert launch.left() == []


def test_a_second_ctrl_c_kills_at_once(suprun: Launches) -> None:
    launch = suprun("--standalone", "--shutdown-timeout=600", LAUNCHED, "sleep", "deaf")
    launch.wait_for("up RANK")
    launch.signal(signal.SIGINT)
    launch.wait_for("deaf 0")
    launch.signal(signal.SIGINT)
    assert launch.end() == 130
    assert "SIGINT again: the ranks are killed" in launch.text


def test_ctrl_c_that_is_none_of_the_signals_to_handle_still_has_its_code(suprun: Launches) -> None:
    launch = suprun("--standalone", "--signals-to-handle=SIGTERM", LAUNCHED, "sleep")
    launch.wait_for("up RANK")
    launch.signal(signal.SIGINT)
    assert launch.end() == 130
    launch.wait_until_nothing_is_left()


def test_the_shutdown_timeout_is_honoured_where_a_rank_fails(suprun: Launches) -> None:
    words = ("--standalone", "--nproc-per-node=2", "--shutdown-timeout=1", LAUNCHED, "sleep", "deaf", "exit:1:5")
    launch = suprun(*words, env=FOR_EVER)
    assert launch.end() == 5


def test_sigusr1_is_the_ranks_and_stops_nothing(suprun: Launches) -> None:
    launch = suprun("--standalone", "--nproc-per-node=2", LAUNCHED, "sleep", "usr1")
    launch.wait_for("up RANK", 2)

    def warned() -> bool:
        launch.signal(signal.SIGUSR1)
        return {"warned 0", "warned 1"} <= set(launch.text.splitlines())

    wait_for("both ranks to be warned", warned)
    launch.signal(signal.SIGTERM)
    assert launch.end() == 143


def test_log_dir_has_torchruns_layout_and_keeps_every_attempt(suprun: Launches) -> None:
    words = ("--log-dir=logs", "--redirects=1", "--tee=0:2", "--nproc-per-node=2", "--max-restarts=1")
    launch = suprun("--standalone", *words, LAUNCHED, "exit:1:3", "once")
    assert launch.end() == 0
    (base,) = (launch.folder / "logs").iterdir()
    assert sorted(path.name for path in base.iterdir()) == ["attempt_0", "attempt_1"]
    assert (base / "attempt_0/1/stdout.log").read_text().startswith("up RANK=1")
    assert (base / "attempt_1/1/stdout.log").read_text().endswith("done 1\n")
    assert (base / "attempt_1/1/stderr.log").read_text() == ""
    assert "up RANK" not in launch.text


def test_lines_with_a_word_of_a_filter_are_written_to_a_file_of_their_own(suprun: Launches) -> None:
    words = ("--log-dir=logs", "--duplicate-stdout-filters=done 1,done 7", "--nproc-per-node=2")
    launch = suprun("--standalone", *words, LAUNCHED)
    assert launch.end() == 0
    (copied,) = launch.folder.glob("logs/*/attempt_0/filtered_stdout.log")
    assert re.fullmatch("[^ ]+:1 [│|] done 1\n", copied.read_text())


def test_tee_shows_whole_lines_with_node_and_rank_in_front(suprun: Launches) -> None:
    launch = suprun("--standalone", "--tee=3", "--nproc-per-node=2", LAUNCHED, env={"PYTHONIOENCODING": "utf-8"})
    assert launch.end() == 0
    assert re.search("^[^ ]+:1 [│|] done 1$", launch.text, re.MULTILINE)


def test_only_the_local_ranks_that_are_wanted_are_shown(suprun: Launches) -> None:
    launch = suprun("--standalone", "--local-ranks-filter=1", "--nproc-per-node=2", LAUNCHED)
    assert launch.end() == 0
    assert "done 1" in launch.text
    assert "done 0" not in launch.text


def test_ranks_have_the_environment_that_suprun_was_called_in(suprun: Launches, short_dir: Path) -> None:
    script = short_dir / "env.py"
    names = ("PYTHONPATH", "TERM", "MINE", "PWD_OF")
    script.write_text(f"import json, os\nprint(json.dumps([os.environ.get(n) for n in {names!r}]))\n")
    wanted = {"PYTHONPATH": "/nowhere", "TERM": "vt100", "MINE": "a b", "PWD_OF": "x"}
    launch = suprun("--standalone", str(script), env=wanted)
    assert launch.end() == 0
    path, *rest = json.loads(launch.text)
    assert path.startswith("/nowhere:")
    assert rest == ["vt100", "a b", "x"]


def test_a_script_that_is_not_there_is_one_line_and_its_mend(suprun: Launches) -> None:
    launch = suprun("--standalone", "no_such.py")
    assert launch.end() == 78
    assert launch.text.startswith("suprun: error[C030]: no_such.py is not there")


def test_a_console_that_nobody_reads_stops_no_job(suprun: Launches, short_dir: Path) -> None:
    import subprocess

    script = short_dir / "flood.py"
    script.write_text("for _ in range(40_000): print('x' * 100)\nopen('ended', 'w').close()\n")
    from tests.e2e.supd import BIN

    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SUPD_"))}
    process = subprocess.Popen(
        [str(BIN / "suprun"), "--standalone", "flood.py"],
        stdout=subprocess.PIPE,
        cwd=short_dir,
        env={**env, "XDG_CONFIG_HOME": str(short_dir / "config")},
    )
    try:
        wait_for("the script to end", (short_dir / "ended").exists)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    assert not alive(process.pid)
