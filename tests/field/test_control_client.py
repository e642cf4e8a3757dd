"""Cases H86 to H88 of the field reports: the control client, its terminal, and the session that it was started in."""

import contextlib
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.messages.control import CONTROL_VERSION, Greeting
from supervisor.daemon.login_session import kills_at_logout, login_session
from supervisor.shell.cgroup import parse_memberships, parse_mounts, remove_cgroup
from supervisor.shell.clock import boot_s
from tests.cli.conftest import FakeDaemon
from tests.e2e.jobs import command_job
from tests.e2e.supd import BIN, TIMEOUT_S, Supd, alive, wait_for

LINES = 300


def test_a_start_that_failed_ends_with_a_code_of_its_own_and_says_why(supd: Supd, short_dir: Path) -> None:
    """H86. The supd of another version is stood in for by a socket that greets as one."""
    script = short_dir / "script"
    script.write_text("#!/nosuch/interpreter\n")
    script.chmod(0o755)
    ghost = command_job(supd, "ghost", [str(script)])
    address = str(short_dir / "other.sock")
    newer = FakeDaemon(address, lambda _request: [], Greeting(control_version=CONTROL_VERSION + 1, supd_version="9"))
    try:
        ends = {
            "spawn error": supd.supctl("start", str(ghost), check=False),
            "unknown job": supd.supctl("stop", "nosuch", check=False),
            "wrong words": supd.supctl("strat", check=False),
            "wrong file": supd.supctl("start", str(ghost), "--set", "stop.grace=5", check=False),
            "not running": supd.supctl("--addr", str(short_dir / "nobody"), "start", str(ghost), check=False),
            "another version": supd.supctl("--addr", address, "start", str(ghost), check=False),
        }
    finally:
        newer.close()
    codes = {what: end.returncode for what, end in ends.items()}
    assert codes == {
        "spawn error": 4,
        "unknown job": 3,
        "wrong words": 2,
        "wrong file": 78,
        "not running": 69,
        "another version": 69,
    }
    assert "/nosuch/interpreter" in ends["spawn error"].stderr
    assert "error[C001]: no supd answers at" in ends["not running"].stderr
    assert "error[C003]: supd 9 is newer than this supctl" in ends["another version"].stderr
    for what, end in ends.items():
        assert end.stdout == "", what
        assert end.stderr.splitlines()[-1].startswith("→ "), what


def test_a_terminal_that_is_closed_leaves_the_job_and_another_one_sees_every_line_once(supd: Supd) -> None:
    """H87. What is closed is the terminal of `supctl start --follow`; the kernel sends its session SIGHUP."""
    count = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i + 1)); sleep 0.01; done"
    job = command_job(supd, "counts", ["sh", "-c", count])
    master, slave = pty.openpty()
    client = subprocess.Popen(
        ["setsid", "--ctty", "--wait", BIN / "supctl", "start", str(job), "--follow"],
        env=supd.env,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=supd.folder,
    )
    os.close(slave)
    try:
        read_until(master, "line 20")
    finally:
        os.close(master)
    client.wait(TIMEOUT_S)
    assert supd.status("counts")["state"] == "running", "the job does not notice"
    seen = supd.supctl("logs", "counts", "--follow", "--no-prefix", "--tail", "all").stdout
    assert seen.splitlines() == [f"line {i}" for i in range(LINES)]
    assert supd.status("counts")["state"] == "succeeded"


def read_until(terminal: int, text: str) -> None:
    """Read what is on a terminal until this is there."""
    seen, give_up_s = "", boot_s() + TIMEOUT_S
    while text not in seen:
        readable, _, _ = select.select([terminal], [], [], max(give_up_s - boot_s(), 0))
        assert readable, f"waited for {text!r}, saw {seen!r}"
        seen += os.read(terminal, 4096).decode(errors="replace")


# --- H88 ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cgroup(name: str) -> Iterator[Path]:
    """A group of this name below our own; who is left in it is killed at the end."""
    group = _new_group(name)
    if group is None:
        pytest.skip("a cgroup takes root")
    try:
        yield group
    finally:
        wait_for("the group to be empty", lambda: not kill_all(group))
        wait_for("the group to be removed", lambda: remove_cgroup(str(group)))


def _new_group(name: str) -> Path | None:
    """In any hierarchy that takes one."""
    own = parse_memberships(Path("/proc/self/cgroup").read_text())
    for mount in parse_mounts(Path("/proc/self/mountinfo").read_text()):
        path = own.get("") if mount.is_v2 else next((own[c] for c in mount.controllers if c in own), None)
        above = mount.folder(path) if path is not None else None
        if above is not None:
            group = Path(above, name)
            with contextlib.suppress(OSError):
                group.mkdir()
                return group
    return None


def kill_all(group: Path) -> list[int]:
    """Kill whoever is in a group or below it, as a session's end does; who was there."""
    there = [int(pid) for file in group.rglob("cgroup.procs") for pid in file.read_text().split()]
    for pid in filter(alive, there):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for below in sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True):
        remove_cgroup(str(below))
    return there


def inside(group: Path) -> tuple[str, ...]:
    """What to put in front of a command so that it runs in a group."""
    return "sh", "-euc", f'echo $$ > "{group}/cgroup.procs"; exec "$@"', "sh"


@pytest.fixture
def unstarted(short_dir: Path) -> Iterator[Supd]:
    """A supd that the test starts."""
    supd = Supd(short_dir, config="[workers]\nready_runners = 0\n")
    yield supd
    supd.close()


def with_logind_conf(folder: Path, text: str) -> tuple[str, ...]:
    """What to put in front of a command so that this is the last word of logind.conf for it."""
    drop_in = folder / "run/systemd/logind.conf.d/zz.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(f"[Login]\n{text}")
    return "unshare", "--mount", "sh", "-euc", f'mount --bind "{folder}/run" /run; exec "$@"', "sh"


def test_a_supd_inside_a_session_says_that_it_may_end_with_it_with_a_cgroup_for_the_session(unstarted: Supd) -> None:
    """H88. Without systemd here: a cgroup with the name of a session's scope; its end is a kill of all that is in it.

    The way to start outside is in docs/operations.md; what it comes to is a group with another name.
    """
    name = f"session-{os.getpid()}.scope"
    with cgroup(name) as scope:
        logind = with_logind_conf(unstarted.folder, "KillUserProcesses=yes\nKillExcludeUsers=\n")
        unstarted.start(argv=(*inside(scope), *logind))
        said = next(line for line in unstarted.log.read_text().splitlines() if "login_session_found" in line)
        assert name in said
        assert "warning" in said
        run = unstarted.start_job(command_job(unstarted, "train", ["sh", "-c", "echo up; exec sleep 3600"]))
        unstarted.wait_state(run, "running")
        kill_all(scope)
        unstarted.kill()  # is dead already, and is waited for
        wait_for("all to be gone", lambda: not unstarted.survivors())
    unstarted.log.unlink()
    with cgroup(f"supd-{os.getpid()}.service") as service:
        unstarted.start(argv=inside(service))
        assert "login_session_found" not in unstarted.log.read_text()
        unstarted.close()


@pytest.mark.parametrize(
    ("membership", "session"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "session-3.scope"),
        ("4:memory:/\n1:name=systemd:/user.slice/user-0.slice/session-c2.scope/supd-1\n", "session-c2.scope"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/supd.service\n", ""),
        ("0::/\n", ""),
        ("", ""),
    ],
)
def test_a_session_is_known_by_the_name_of_its_scope(tmp_path: Path, membership: str, session: str) -> None:
    """H88, the part that a machine without sessions can show of them all."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(membership)
    assert login_session(str(tmp_path)) == session


@pytest.mark.parametrize(
    ("files", "killed"),
    [
        ({}, {"root": False, "eva": None}),
        ({"etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\n"}, {"root": False, "eva": None}),
        ({"etc/systemd/logind.conf": "[Login]\nKillUserProcesses = no\n"}, {"root": False, "eva": False}),
        ({"usr/lib/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, {"root": False, "eva": True}),
        (
            {
                "etc/systemd/logind.conf": "KillUserProcesses=no\nKillExcludeUsers=\n",
                "usr/lib/systemd/logind.conf.d/50.conf": "KillUserProcesses=no\n",
                "etc/systemd/logind.conf.d/50.conf": "KillUserProcesses=1\n",
                "etc/systemd/logind.conf.d/10.conf": "KillUserProcesses=0\n",
            },
            {"root": True, "eva": True},
        ),
        (
            {"etc/systemd/logind.conf": "KillUserProcesses=yes\nKillOnlyUsers=adam root\nKillExcludeUsers=bob\n"},
            {"root": True, "eva": False, "bob": False, "adam": True},
        ),
    ],
)
def test_whether_a_logout_kills_is_what_logind_conf_says_of_the_user(
    tmp_path: Path, files: dict[str, str], killed: dict[str, bool | None]
) -> None:
    """H88. Where no file says it, it is as systemd was built."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert {user: kills_at_logout(user, str(tmp_path)) for user in killed} == killed
