"""What was accepted is kept, two daemons do not meet, and trouble with files is told in one clear line."""

import os
import resource
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from protocol.messages.control import Done
from tests.e2e.supd import BIN, TIMEOUT_S, Supd, alive, running_supd, wait_for
from tests.e2e.wire import ask, start_request


def refused(supd: Supd, config: Path) -> str:
    """What a daemon says that is refused with this configuration; it must end with 1 and without a traceback."""
    done = subprocess.run(
        [str(BIN / "supd"), "run", "--config", str(config)],
        env=supd.env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("supd: error[F"), done.stderr
    return done.stderr


def other_config(supd: Supd, *, control: Path | None = None, state: Path | None = None) -> Path:
    """The configuration of a second daemon, which shares what is not given."""
    path = supd.folder / "other.toml"
    path.write_text(
        f'[listen]\ncontrol = "{control or supd.control}"\npeer = "127.0.0.1:0"\n'
        f'[state]\ndir = "{state or supd.state}"\n'
    )
    return path


def test_a_start_that_was_accepted_survives_a_kill_of_supd_right_after_the_answer(supd: Supd) -> None:
    request = start_request(supd, supd.job("train", "sleeper.py", nproc=1), "one")
    reply = ask(supd.control, request)
    supd.kill()
    assert isinstance(reply, Done), reply
    supd.start()
    assert supd.wait_state(reply.run, "running")["generation"] == 0
    assert ask(supd.control, request) == reply, "the same request has made another run"
    assert [r["run"] for r in supd.json("status")["runs"]] == [reply.run]


def test_the_same_request_makes_one_run_however_often_it_comes(supd: Supd) -> None:
    request = start_request(supd, supd.job("train", "sleeper.py", nproc=1), "one")
    first = ask(supd.control, request)
    assert isinstance(first, Done), first
    assert ask(supd.control, request) == first
    supd.supctl("stop", first.run, "--now")
    assert ask(supd.control, request) == first, "also when it is over"
    assert len(supd.json("status")["runs"]) == 1


def test_a_second_supd_on_the_same_state_is_refused_and_the_first_is_unharmed(supd: Supd) -> None:
    said = refused(supd, other_config(supd, control=supd.folder / "other.sock"))
    assert supd.process is not None
    assert f"another supd (pid {supd.process.pid}) uses {supd.state}" in said
    supd.supctl("status")


def test_a_second_supd_on_the_same_socket_is_refused_and_the_first_is_unharmed(supd: Supd) -> None:
    said = refused(supd, other_config(supd, state=supd.folder / "other"))
    assert f"another supd listens at {supd.control}" in said
    supd.supctl("status")


def test_a_supd_that_is_frozen_keeps_its_socket(supd: Supd) -> None:
    assert supd.process is not None
    supd.process.send_signal(signal.SIGSTOP)
    said = refused(supd, other_config(supd, state=supd.folder / "other"))
    supd.process.send_signal(signal.SIGCONT)
    assert f"another supd listens at {supd.control}" in said
    supd.supctl("status")


def test_a_file_in_the_place_of_the_socket_is_left_alone(short_dir: Path) -> None:
    supd = Supd(short_dir)
    supd.control.write_text("precious")
    assert "is no socket" in refused(supd, supd.config)
    assert supd.control.read_text() == "precious"


def test_a_service_manager_is_told_when_supd_is_ready(short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = short_dir / "notify"
        manager.bind(str(address))
        manager.settimeout(TIMEOUT_S)
        with running_supd(short_dir, env={"NOTIFY_SOCKET": str(address)}) as supd:
            assert b"READY=1" in manager.recv(1024).splitlines()
            supd.supctl("status")


@pytest.mark.parametrize("damage", ["all of it", "its middle", "another program's file"])
def test_a_damaged_journal_is_refused_in_one_clear_line(short_dir: Path, damage: str) -> None:
    with running_supd(short_dir) as supd:
        for number in range(3):
            supd.wait_state(supd.start_job(supd.job(f"job{number}", "sleeper.py", "--for", "0", nproc=1)), "succeeded")
        supd.kill(signal.SIGTERM)
        journal = supd.state / "journal.db"
        content = bytearray(journal.read_bytes())
        if damage == "all of it":
            content = bytearray(os.urandom(len(content)))
        elif damage == "its middle":
            content[4096:] = os.urandom(len(content) - 4096)
        else:
            content[100:] = b"\0" * (len(content) - 100)
        journal.write_bytes(content)
        said = refused(supd, supd.config)
        assert str(journal) in said
        assert "→" in said


def test_a_full_disk_refuses_what_is_new_keeps_what_was_accepted_and_goes_on_once_there_is_room(supd: Supd) -> None:
    run = supd.start_job(supd.job("train", "sleeper.py", nproc=1))
    supd.wait_state(run, "running")
    (rank,) = supd.ranks(run)
    assert supd.process is not None
    full_at = (supd.state / "journal.db-wal").stat().st_size
    assert supd.log.stat().st_size < full_at, "else what supd says would be cut off, too"
    resource.prlimit(supd.process.pid, resource.RLIMIT_FSIZE, (full_at, resource.RLIM_INFINITY))
    reply = ask(supd.control, start_request(supd, supd.job("other", "sleeper.py"), "one"))
    assert getattr(reply, "code", None) == "F022", reply
    assert [r["run"] for r in supd.json("status")["runs"]] == [run], "what was refused is not there"
    os.kill(rank["pid"], signal.SIGKILL)
    wait_for("supd to wait for its disk", lambda: "journal_waits" in supd.log.read_text())
    assert "Traceback" not in supd.log.read_text()
    full = f"the journal {supd.state / 'journal.db'} has failed"
    wait_for("it to be told", lambda: f"the coordinator's disk: {full}" in (supd.status(run)["waiting_for"] or ""))
    (node,) = supd.json("nodes")["nodes"]
    assert node["note"].startswith(full)
    resource.prlimit(supd.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wait_for("generation 1", lambda: supd.status(run)["generation"] == 1 and supd.status(run)["state"] == "running")
    assert (supd.status(run)["waiting_for"], supd.json("nodes")["nodes"][0]["note"]) == (None, None)
    assert supd.process.poll() is None


def test_a_full_disk_costs_a_runner_its_files_and_never_the_training(supd: Supd) -> None:
    run = supd.start_job(supd.job("train", "sleeper.py", nproc=1))
    supd.wait_state(run, "running")
    (rank,) = supd.ranks(run)
    runner = int(Path(f"/proc/{rank['pid']}/stat").read_text().rpartition(")")[2].split()[1])
    resource.prlimit(runner, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    os.kill(rank["pid"], signal.SIGKILL)
    wait_for("generation 1", lambda: supd.status(run)["generation"] == 1 and supd.status(run)["state"] == "running")
    assert alive(runner)
    supd.supctl("stop", run)
    assert supd.status(run)["state"] == "stopped"


def test_a_control_socket_that_somebody_removes_comes_back_and_runs_go_on(supd: Supd) -> None:
    run = supd.start_job(supd.job("train", "sleeper.py", nproc=1))
    supd.wait_state(run, "running")
    supd.control.unlink()
    assert supd.supctl("status", check=False).returncode == 69
    wait_for("the socket to be back", lambda: supd.supctl("status", check=False).returncode == 0)
    assert supd.status(run)["state"] == "running"


def test_the_end_of_its_terminal_does_not_end_supd(supd: Supd) -> None:
    assert supd.process is not None
    supd.process.send_signal(signal.SIGHUP)
    supd.supctl("status")
    assert supd.process.poll() is None
