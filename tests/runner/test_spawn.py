import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from supervisor.runner.spawn import ExitStatus, Spawned, SpawnError, WorkerCommand, read_exit, reap, spawn
from supervisor.shell import tree
from supervisor.shell.clock import boot_s
from supervisor.shell.lease_page import LeasePage
from supervisor.shell.precedence import give_back, take_precedence
from tests.runner.processes import IS_ROOT, NOBODY, WORKERS, end, is_gone, read_pids, wait_until

ENV = {b"PATH": b"/usr/bin:/bin"}


def command(*argv: bytes | str, cwd: bytes | str = "/", **changes: Any) -> WorkerCommand:
    return WorkerCommand(**{"argv": list(argv), "env": ENV, "cwd": cwd, "limits": {}, "umask": 0o22, **changes})


def finish(worker: Spawned) -> tuple[ExitStatus | None, bytes, bytes]:
    """Wait for the end; exit status and output."""
    output = []
    for fd in (worker.stdout_fd, worker.stderr_fd):
        os.set_blocking(fd, True)
        with open(fd, "rb") as file:
            output.append(file.read())
    wait_until(lambda: read_exit(worker.pidfd) is not None)
    status = read_exit(worker.pidfd)
    reap(worker)
    return status, output[0], output[1]


def report(**changes: Any) -> dict[str, Any]:
    """What a worker says of itself."""
    status, output, errors = finish(spawn(command(sys.executable, os.path.join(WORKERS, "report.py"), **changes)))
    assert (status, errors) == (ExitStatus(code=0), b"")
    return dict(json.loads(output))


def refusal(cmd: WorkerCommand) -> tuple[str, str]:
    """Path and reason of a spawn that fails, which leaves no descriptor behind."""
    before = os.listdir("/proc/self/fd")
    with pytest.raises(SpawnError) as caught:
        spawn(cmd)
    assert os.listdir("/proc/self/fd") == before
    return caught.value.path, caught.value.reason


def program(folder: Path, content: bytes, mode: int = 0o755) -> str:
    path = folder / "prog"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


# --- what a worker gets ------------------------------------------------------------------------------------------


def test_a_worker_gets_exactly_its_environment_folder_and_umask(tmp_path: Path) -> None:
    said = report(cwd=str(tmp_path), env={**ENV, b"A": b"1 \xc3\xa4"}, umask=0o27)
    # Python puts LC_CTYPE in by itself where the locale is C.
    assert {name: value for name, value in said["env"].items() if name != "LC_CTYPE"} == {
        "PATH": "/usr/bin:/bin",
        "A": "1 ä",
    }
    assert (said["cwd"], said["umask"]) == (str(tmp_path), 0o27)


def test_a_worker_has_the_three_standard_descriptors_and_no_other() -> None:
    leaky = os.open("/", os.O_RDONLY)
    os.set_inheritable(leaky, True)
    try:
        said = report()
    finally:
        os.close(leaky)
    assert (said["fds"], said["input"]) == ([0, 1, 2], "/dev/null")


def test_a_worker_leads_its_own_session_and_dies_with_its_parent() -> None:
    worker = spawn(command(sys.executable, os.path.join(WORKERS, "report.py")))
    _, output, _ = finish(worker)
    said = json.loads(output)
    assert (said["session"], said["group"], said["death_signal"]) == (worker.pid, worker.pid, signal.SIGKILL)


def test_a_worker_has_default_signals_whatever_its_parent_ignores_or_blocks() -> None:
    numbers = (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers[1:]]
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        said = report()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        for number, handler in zip(numbers[1:], before, strict=True):
            signal.signal(number, handler)
    assert (said["ignored"], int(said["blocked"], 16)) == (0, 0)


def test_limits_are_set_and_never_above_the_hard_ones() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert report(limits={"nofile": 123, "core": 0})["limits"] == {"NOFILE": 123, "CORE": 0}
    assert report(limits={"nofile": -1})["limits"]["NOFILE"] == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_a_worker_is_bound_to_the_cpus_that_are_its_own() -> None:
    cpu = min(os.sched_getaffinity(0))
    words = (sys.executable, "-c", "import os; print(os.sched_getaffinity(0))")
    assert finish(spawn(command(*words, cpus=frozenset({cpu}))))[1] == b"{%d}\n" % cpu


def test_bytes_that_are_no_text_arrive_as_they_are() -> None:
    status, output, _ = finish(spawn(command("printf", b"%s", b"\xff\xfe")))
    assert (status, output) == (ExitStatus(code=0), b"\xff\xfe")


def test_a_killed_parent_takes_its_workers_along() -> None:
    argv = [sys.executable, os.path.join(WORKERS, "spawner.py")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as spawner:
        found = read_pids(spawner, 2)
        spawner.kill()
        try:
            wait_until(lambda: is_gone(found["worker"][0]))
        finally:
            end(found["worker"])


def test_a_worker_ends_with_the_thread_that_has_spawned_it() -> None:
    spawned: list[Spawned] = []
    thread = threading.Thread(target=lambda: spawned.append(spawn(command("sleep", "60"))))
    thread.start()
    thread.join(15)
    assert finish(spawned[0])[0] == ExitStatus(signal=signal.SIGKILL)


def test_a_worker_has_the_precedence_that_its_runner_had_first() -> None:
    here = report()
    before = take_precedence()
    try:
        said = report(precedence=before)
    finally:
        give_back(before)
    assert (said["nice"], said["oom_score_adj"]) == (here["nice"], here["oom_score_adj"]) == before


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
def test_who_takes_precedence_comes_first_for_the_cpu_and_last_for_want_of_memory() -> None:
    before = take_precedence()
    try:
        said = report()
    finally:
        give_back(before)
    assert said["nice"] == min(before[0], -10)
    assert said["oom_score_adj"] in (min(before[1], -900), before[1]), "a container's root may not lower it"


def test_nothing_is_executed_once_the_lease_is_over() -> None:
    lease = LeasePage.make()
    lease.hold(boot_s() - 1)
    ended, output, _ = finish(spawn(command("printf", "begun", lease=lease)))
    assert (ended, output) == (ExitStatus(signal=signal.SIGKILL), b"")
    lease.hold(boot_s() + 60)
    assert finish(spawn(command("printf", "begun", lease=lease)))[1] == b"begun"


# --- how it ended ------------------------------------------------------------------------------------------------


def test_exit_codes_and_signals_are_told_apart() -> None:
    assert finish(spawn(command("sh", "-c", "exit 9")))[0] == ExitStatus(code=9)
    assert finish(spawn(command("sh", "-c", "kill -9 $$")))[0] == ExitStatus(signal=9)
    assert finish(spawn(command("sh", "-c", "exit 137")))[0] == ExitStatus(code=137)


def test_an_exit_is_read_without_reaping_and_a_worker_that_runs_has_none() -> None:
    worker = spawn(command("sleep", "60"))
    assert read_exit(worker.pidfd) is None
    os.kill(worker.pid, signal.SIGTERM)
    wait_until(lambda: read_exit(worker.pidfd) is not None)
    zombie = tree.look(worker.pid)
    assert zombie is not None
    assert zombie.state == "Z"
    assert finish(worker)[0] == ExitStatus(signal=signal.SIGTERM)


def test_a_core_dump_is_told(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    status, _, _ = finish(spawn(command("sh", "-c", "kill -SEGV $$", cwd=str(tmp_path), limits={"core": -1})))
    assert status is not None
    assert status.signal == signal.SIGSEGV
    assert status.core_dumped == (hard != 0)


# --- why not -----------------------------------------------------------------------------------------------------


def test_a_working_directory_that_cannot_be_entered_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusal(command("true", cwd=str(tmp_path / "no"))) == (str(tmp_path / "no"), "working directory: not found")
    assert refusal(command("true", cwd=str(tmp_path / "file"))) == (
        str(tmp_path / "file"),
        "working directory: not a directory",
    )


def test_a_program_is_searched_on_the_workers_path_from_its_folder(tmp_path: Path) -> None:
    program(tmp_path, b"#!/bin/sh\necho found\n")
    env = {b"PATH": b"/nowhere:."}
    assert finish(spawn(command("prog", cwd=str(tmp_path), env=env)))[1] == b"found\n"
    assert finish(spawn(command("./prog", cwd=str(tmp_path), env=env)))[1] == b"found\n"
    assert refusal(command("prog", env=env)) == ("prog", "program not found on the worker's PATH (/nowhere:.)")


def test_a_program_that_is_missing_or_not_executable_is_named(tmp_path: Path) -> None:
    path = program(tmp_path, b"#!/bin/sh\n", 0o644)
    assert refusal(command(f"{path}x")) == (f"{path}x", "program: not found")
    assert refusal(command(path)) == (path, "program is not executable (chmod +x)")
    assert refusal(command("prog", env={b"PATH": bytes(tmp_path)})) == (path, "program is not executable (chmod +x)")
    assert refusal(command(str(tmp_path))) == (str(tmp_path), "program: is a directory")
    assert refusal(command(f"{path}/x")) == (f"{path}/x", "program: not found: a part of its path is a file")
    assert refusal(command("")) == ("", "no program is named")


def test_the_interpreter_of_a_script_is_named_when_it_is_missing(tmp_path: Path) -> None:
    path = program(tmp_path, b"#!/opt/none/python3 -u\nprint()\n")
    assert refusal(command(path)) == ("/opt/none/python3", f"interpreter of {path} not found")
    program(tmp_path, b"#!/bin/sh\r\necho\r\n")
    assert refusal(command(path)) == (
        "/bin/sh",
        f"interpreter of {path} not found: the script has Windows line ends",
    )
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    program(tmp_path, f"#! {tmp_path}/tool\n".encode())
    assert refusal(command(path)) == (f"{tmp_path}/tool", f"interpreter of {path} is not executable")


def test_what_is_no_program_at_all_is_named(tmp_path: Path) -> None:
    path = program(tmp_path, b"just text\n")
    assert refusal(command(path)) == (
        path,
        "not a program for this machine, and no script: its first line is no #! line",
    )


def test_a_program_whose_loader_is_missing_is_named(tmp_path: Path) -> None:
    binary = Path("/bin/true").read_bytes()
    loader = next(name for name in (b"/lib64/ld-linux-x86-64.so.2", b"/lib/ld-linux-aarch64.so.1") if name in binary)
    path = program(tmp_path, binary.replace(loader, b"/" + b"x" * (len(loader) - 1), 1))
    assert refusal(command(path)) == (path, "the loader that this program names is not on this machine")


def test_arguments_and_environment_that_are_too_large_or_impossible_are_named() -> None:
    path, reason = refusal(command("/bin/true", "x" * 200_000))
    assert (path, reason) == ("/bin/true", "argument 1 has 200001 bytes, and no single one may have over 131072")
    reason = refusal(command("/bin/true", env={b"BIG": b"x" * 200_000}))[1]
    assert reason == "variable BIG has 200005 bytes, and no single one may have over 131072"
    reason = refusal(command("/bin/true", *["x" * 100_000] * 80))[1]
    assert reason.startswith("arguments and environment are too large (8000")
    assert refusal(command("/bin/true", "a\0b")) == ("/bin/true", "embedded null byte")
    assert refusal(command("/bin/true", env={b"A=B": b"1"}))[1] == "illegal environment variable name"


def test_a_runner_out_of_descriptors_says_so() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.dup(0)
    os.close(first_free)
    limit = first_free + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        with pytest.raises(SpawnError) as caught:
            spawn(command("/bin/true"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (caught.value.path, caught.value.reason) == (
        "/bin/true",
        f"too many open files in the runner (limit {limit})",
    )
    assert caught.value.is_nodes, "another node may have some left"


@pytest.mark.parametrize(
    ("number", "is_nodes"), [(errno.ESTALE, True), (errno.EIO, True), (errno.EACCES, False), (errno.ENOENT, False)]
)
def test_a_disk_that_does_not_work_is_the_nodes_fault_and_what_is_not_there_the_jobs(
    number: int, is_nodes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = command("/bin/true")
    stat = os.stat

    def fail(path: object, *args: Any, **kwargs: Any) -> os.stat_result:
        if path == one.cwd:
            raise OSError(number, os.strerror(number), path)
        return stat(path, *args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:  # undone before anything is told of it
        patched.setattr(os, "stat", fail)
        with pytest.raises(SpawnError) as caught:
            spawn(one)
    assert caught.value.is_nodes == is_nodes


def test_a_program_that_is_not_there_is_not_the_nodes_fault() -> None:
    with pytest.raises(SpawnError) as caught:
        spawn(command("/no/such/program"))
    assert not caught.value.is_nodes


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
def test_what_an_ordinary_user_may_not_enter_or_execute_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = program(tmp_path, b"#!/bin/sh\n")
    attempt = f"""if True:
        import os, sys
        from supervisor.runner.spawn import SpawnError, WorkerCommand, spawn
        os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
        for argv, cwd in (["/bin/true"], sys.argv[1]), ([sys.argv[2]], "/"):
            try:
                spawn(WorkerCommand(argv, {{}}, cwd, {{}}, 0o22))
            except SpawnError as exc:
                print(exc)
        """
    argv = [sys.executable, "-c", attempt, str(tmp_path), path]
    said = subprocess.run(argv, capture_output=True, check=True, timeout=15).stdout.decode().splitlines()
    assert said == [f"{tmp_path}: working directory: permission denied", f"{path}: program: permission denied"]
