"""`supctl start`: says how it gets on, returns when the job runs, and tells the truth if it does not."""

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from protocol import notes
from protocol.messages.control import (
    Done,
    End,
    EventRecord,
    Failure,
    GetStatus,
    Incident,
    LogChunk,
    Request,
    Start,
    Statuses,
    Watch,
)
from protocol.toml_text import MAX_FILE_BYTES
from supervisor.cli import follow, start, watching
from supervisor.shell.pythons import find_python
from tests.cli.conftest import Daemon, Script, Step, Supctl, a_run

RUN = "hello@1a2b3c"
INCIDENT = Incident(
    number=1,
    generation=0,
    cause="signal",
    summary="rank 3 on n1 (pid 4711) killed by SIGKILL, sender unknown",
    node="n1",
    rank=3,
    pid=4711,
    signal="SIGKILL",
    shell_code=137,
    wall_s=1_800_000_010.0,
    stderr_tail=(b"Traceback (most recent call last):", b"Boom: \x1b[2Jx"),
)
STARTING = {"state": "starting", "has_started": False, "ranks_running": 0, "generation": 0}
FAILED = {"state": "failed", "is_final": True, "reason": "restart budget spent", "incident": INCIDENT}


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    file = tmp_path / "job.toml"
    file.write_bytes(b'name = "hello"\n')
    return str(file)


def shown(**changes: object) -> Statuses:
    return Statuses(runs=(a_run(**changes),))


def accepting(*steps: Step) -> Script:
    """A script that accepts a start and plays `steps` for the Watch that follows."""

    def script(request: Request) -> Sequence[Step]:
        match request:
            case Start():
                return [Done(run=RUN, notes=("python /usr/bin/python3",))]
            case GetStatus():
                return [shown(**STARTING)]
            case _:
                return steps

    return script


def test_it_returns_when_all_ranks_have_started_and_tells_each_change_once(
    supctl: Supctl, daemon: Daemon, job_file: str
) -> None:
    spawned = STARTING | {"ranks_running": 4}
    fake = daemon(accepting(shown(**STARTING), shown(**spawned), shown(**spawned), shown()))
    result = supctl("start", job_file)
    assert result.code == 0
    assert result.out == ""
    assert result.err == (
        "✓ accepted run hello@1a2b3c\n"
        "  python /usr/bin/python3\n"
        "✓ spawned 4/4 ranks\n"
        "✓ started\n"
        "hello is running   → supctl logs -f hello\n"
    )
    assert [type(request) for request in fake.requests] == [Start, Watch]


def test_supd_gets_the_file_and_the_place_it_was_started_from(
    supctl: Supctl, daemon: Daemon, job_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    python = tmp_path / "venv" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.touch(0o755)
    monkeypatch.setenv("ODD", os.fsdecode(b"\xff\xfe"))
    monkeypatch.chdir(tmp_path)
    fake = daemon(accepting())
    assert supctl("start", "job.toml", "--detach").code == 0
    [request] = fake.requests
    assert isinstance(request, Start)
    assert request.job_file == b'name = "hello"\n'
    assert (request.source, request.folder) == ("job.toml", os.path.realpath(tmp_path))
    assert request.python == str(python)
    assert request.env[b"ODD"] == b"\xff\xfe"
    assert set(request.limits) == {"nofile", "core", "memlock", "stack"}
    umask = os.umask(0)
    os.umask(umask)
    assert request.umask == umask
    assert not request.check_only


def test_without_a_virtual_environment_the_first_python_on_the_path_is_the_interpreter(tmp_path: Path) -> None:
    for folder, name in (("a", "python"), ("b", "python3")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch(0o755)
    path = os.pathsep.join(str(tmp_path / folder) for folder in ("none", "a", "b"))
    assert find_python({"PATH": path}) == str(tmp_path / "a" / "python")
    assert find_python({"PATH": str(tmp_path)}) == ""


def test_the_environment_supd_is_in_is_taken_only_where_there_is_no_other_python(tmp_path: Path) -> None:
    (tmp_path / "python3").touch(0o755)
    own = os.path.dirname(sys.executable)
    assert find_python({"PATH": f"{own}{os.pathsep}{tmp_path}"}) == str(tmp_path / "python3")
    assert os.path.dirname(find_python({"PATH": own})) == own
    assert os.path.dirname(find_python({"PATH": str(tmp_path), "VIRTUAL_ENV": sys.prefix})) == own


def test_quiet_prints_the_run_and_nothing_else(supctl: Supctl, daemon: Daemon, job_file: str) -> None:
    daemon(accepting(shown()))
    result = supctl("-q", "start", job_file)
    assert (result.code, result.out, result.err) == (0, "hello@1a2b3c\n", "")


def test_a_dry_run_starts_nothing(supctl: Supctl, daemon: Daemon, job_file: str) -> None:
    fake = daemon(accepting())
    result = supctl("start", "--dry-run", job_file)
    assert (result.code, "nothing was started" in result.err) == (0, True)
    [request] = fake.requests
    assert isinstance(request, Start)
    assert request.check_only


def test_every_problem_of_the_job_file_is_shown_and_the_code_is_78(
    supctl: Supctl, daemon: Daemon, job_file: str
) -> None:
    message = "error[J101]: unknown key `nam`\n  = did you mean `name`?\n\njob.toml: 1 error"
    daemon(lambda _request: [Failure(code="J000", message=message, hint="mend the file", exit_code=78)])
    result = supctl("start", job_file)
    assert (result.code, result.err) == (78, f"{message}\n→ mend the file\n")


@pytest.mark.parametrize("name", ["nosuch.toml", "."])
def test_a_file_that_cannot_be_read_is_said_without_asking_supd(supctl: Supctl, tmp_path: Path, name: str) -> None:
    result = supctl("start", str(tmp_path / name))
    assert (result.code, "cannot read" in result.err) == (78, True)


def test_a_file_too_large_for_a_job_is_not_read_to_its_end(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(accepting())
    assert supctl("start", "--detach", "/dev/zero").code == 0
    [request] = fake.requests
    assert isinstance(request, Start)
    assert len(request.job_file) == MAX_FILE_BYTES + 1, "enough for supd to see it"


def test_a_run_that_fails_before_it_has_started_tells_who_died_and_how(
    supctl: Supctl, daemon: Daemon, job_file: str
) -> None:
    daemon(accepting(shown(**STARTING), shown(**STARTING | FAILED)))
    result = supctl("start", job_file)
    assert result.code == 4
    lines = result.err.splitlines()
    assert "✗ hello@1a2b3c failed: restart budget spent" in lines
    assert "  rank 3 on n1 (pid 4711) killed by SIGKILL, sender unknown" in lines
    assert "    ┃ Boom: x" in lines
    assert lines[-1] == "→ supctl status hello@1a2b3c"


def test_a_run_that_is_stopped_before_it_has_started_ends_with_5(supctl: Supctl, daemon: Daemon, job_file: str) -> None:
    daemon(accepting(shown(**STARTING | {"state": "stopped", "is_final": True})))
    assert supctl("start", job_file).code == 5


def test_an_incident_on_the_way_is_told_at_once(supctl: Supctl, daemon: Daemon, job_file: str) -> None:
    daemon(accepting(shown(**STARTING | {"incident": INCIDENT}), shown(incident=INCIDENT)))
    result = supctl("start", job_file)
    assert (result.code, result.err.count("✗ rank 3 on n1")) == (0, 1)


def test_a_start_whose_connection_is_lost_is_asked_again_with_the_same_request_id(
    supctl: Supctl, daemon: Daemon, job_file: str
) -> None:
    answers = iter([[None], [Done(run=RUN)]])
    fake = daemon(lambda _request: next(answers))
    result = supctl("start", "--detach", job_file)
    assert result.code == 0
    first, second = fake.requests
    assert isinstance(first, Start)
    assert first == second
    assert len(first.request_id) == 32


def test_a_start_lost_twice_is_given_up(supctl: Supctl, daemon: Daemon, job_file: str) -> None:
    fake = daemon(lambda _request: [None])
    assert (supctl("start", job_file).code, len(fake.requests)) == (69, 2)


def test_a_supd_that_does_not_come_back_is_not_waited_for_for_ever(
    supctl: Supctl, daemon: Daemon, job_file: str, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(start, "COMEBACK_S", 0.1)

    def script(_request: Request) -> Sequence[Step]:
        os.unlink(address)
        return [None]

    daemon(script)
    result = supctl("start", job_file)
    assert (result.code, "C004" in result.err) == (69, True)


def test_a_wait_over_two_seconds_says_what_it_waits_for_once(
    supctl: Supctl, daemon: Daemon, job_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "SILENT_S", 0.0)
    waiting = shown(**STARTING, waiting_for="n2 to offer itself", wait_left_s=41.0)
    daemon(accepting(waiting, waiting, shown()))
    result = supctl("start", job_file)
    assert result.err.count("… waiting for n2 to offer itself, 41s left\n") == 1


def test_on_a_terminal_the_wait_is_one_line_drawn_again_and_then_gone(
    supctl: Supctl, daemon: Daemon, job_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "SILENT_S", 0.0)
    waiting = shown(**STARTING, waiting_for="n2 to offer itself", wait_left_s=41.0)
    daemon(accepting(waiting, waiting, shown()))
    err = supctl("start", job_file, is_tty=True).err
    assert err.count("\r\x1b[K… waiting for n2 to offer itself") == 2
    assert "\r\x1b[K\x1b[32m✓\x1b[0m spawned" in err


def test_follow_shows_output_events_and_the_restart_and_ends_with_the_outcome(
    supctl: Supctl, daemon: Daemon, job_file: str
) -> None:
    def chunk(generation: int, rank: int, data: bytes, stream: str = "out") -> LogChunk:
        return LogChunk(generation=generation, node="n1", rank=rank, stream=stream, data=data)

    event = EventRecord(id=7, wall_s=1.0, run=RUN, generation=0, kind="restart.decided", text="restart 1 of 10 in 5s")
    unknown = msgspec.structs.replace(INCIDENT, signal=None, shell_code=None, wall_s=0.0, stderr_tail=())
    opened, corrected = notes.opened(unknown), notes.corrected(unknown, INCIDENT)
    assert corrected is not None
    incident = [
        EventRecord(id=id, wall_s=1.0, run=RUN, generation=0, kind=note.kind, text=note.text, detail=note.detail)
        for id, note in enumerate((opened, corrected), 5)
    ]
    fake = daemon(
        accepting(
            shown(),
            chunk(0, 0, b"step 1\nstep"),
            chunk(0, 3, b"Boom\n", "err"),
            chunk(0, 0, b" 2\nhalf"),
            *incident,
            event,
            shown(state="restarting", incident=INCIDENT),
            shown(generation=1, incident=INCIDENT, restarts_used=1),
            chunk(1, 0, b"resumed\n"),
            shown(state="succeeded", is_final=True, generation=1, incident=INCIDENT),
            End(),
        )
    )
    result = supctl("start", "--follow", job_file)
    assert result.code == 0
    lines = result.out.splitlines()
    view = "showing rank 0, errors of all, events (all: supctl logs -f -r all)"
    assert lines[:4] == [f"── hello generation 0 · 4 ranks · {view} ──", "0 │ step 1", "3 ┃ Boom", "0 │ step 2"]
    assert lines[4:9] == [
        "sup │ incident #1",
        "sup │   rank 3 on n1 (pid 4711) killed by SIGKILL, sender unknown",
        "sup │   generation 0",
        "sup │ incident #1, corrected",
        "sup │   rank 3 on n1 (pid 4711): ended by SIGKILL, its last lines are known",
    ]
    assert lines[9].endswith(" · signal SIGKILL · exit 137")
    assert lines[11:13] == ["sup │     ┃ Traceback (most recent call last):", "sup │     ┃ Boom: x"]
    assert lines[13:] == [
        "sup │ restart decided: restart 1 of 10 in 5s",
        "0 │ half",
        "── generation 1 · 4 ranks ──",
        "0 │ resumed",
    ]
    assert result.err.endswith("✓ spawned 4/4 ranks\n✓ started\n✓ hello@1a2b3c succeeded\n")
    [watch] = [request for request in fake.requests if isinstance(request, Watch)]
    assert watch.logs is not None
    assert (watch.logs.all_generations, watch.logs.tail_lines, watch.logs.chooser) == (True, None, None)


def test_quiet_is_not_silent_about_a_failure(supctl: Supctl, daemon: Daemon, job_file: str) -> None:
    daemon(accepting(shown(**STARTING | FAILED)))
    result = supctl("-q", "start", job_file)
    assert (result.code, result.out) == (4, "hello@1a2b3c\n")
    assert "killed by SIGKILL" in result.err


@pytest.mark.parametrize(("state", "code"), [("failed", 4), ("stopped", 5)])
def test_follow_ends_with_the_code_of_the_outcome(
    supctl: Supctl, daemon: Daemon, job_file: str, state: str, code: int
) -> None:
    daemon(accepting(shown(state=state, is_final=True, incident=INCIDENT), End()))
    assert supctl("start", "--follow", job_file).code == code


def test_follow_of_a_supd_that_ends_before_the_run_goes_on_when_it_is_back(
    supctl: Supctl, daemon: Daemon, job_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "RETRY_MIN_S", 0.0)
    said = iter([[shown(), End()], [shown(state="succeeded", is_final=True), End()]])
    first = accepting()
    daemon(lambda request: next(said) if isinstance(request, Watch) else first(request))
    result = supctl("start", "--follow", job_file)
    assert result.code == 0
    assert [line[:15] for line in result.err.splitlines() if line.startswith("…")] == [
        "… waiting for s",
        "… supd is back",
    ]


@pytest.mark.parametrize("mode", [(), ("--follow",)])
def test_ctrl_c_leaves_the_job_alone_and_says_so(
    supctl: Supctl, daemon: Daemon, job_file: str, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()
    daemon(accepting(shown(**STARTING), end))

    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start.Progress, "show", interrupt)
    result = supctl("start", job_file, *mode)
    end.set()
    assert (result.code, "detached; job keeps" in result.err) == (130, True)


# --- changes to the job, and what stands in its way ---------------------------------------------------------------


@pytest.mark.parametrize("mode", ["--detach", "--dry-run"])
def test_what_the_command_line_changes_is_handed_to_supd_word_for_word(
    supctl: Supctl, daemon: Daemon, job_file: str, mode: str
) -> None:
    fake = daemon(accepting())
    changes = ["--set", "stop.grace=2m", "--set=run.env.A=a=b", "--name", "other"]
    result = supctl("start", job_file, mode, *changes, "--", "--json", "-q", "--", "", "--help")
    assert result.code == 0
    [request] = fake.requests
    assert isinstance(request, Start)
    assert (request.settings, request.name) == (("stop.grace=2m", "run.env.A=a=b"), "other")
    assert request.args == ("--json", "-q", "--", "", "--help")


def test_an_error_is_told_as_text_where_json_is_only_an_argument_of_the_job(
    supctl: Supctl, daemon: Daemon, job_file: str
) -> None:
    daemon(lambda _request: [Failure(code="F101", message="still active")])
    assert supctl("start", job_file, "--", "--json").err.startswith("error[F101]")


def test_what_may_not_be_meant_is_told_and_no_failure(supctl: Supctl, daemon: Daemon, job_file: str) -> None:
    daemon(lambda _request: [Done(run=RUN, file_warnings=("warning[J501]: x\n  --> \x1b[2Jy",), warnings=("another",))])
    result = supctl("start", "--detach", job_file)
    assert (result.code, result.out) == (0, "")
    assert result.err.endswith("✓ accepted run hello@1a2b3c\n\nwarning[J501]: x\n  --> y\n\nanother\n")


OLD = {"run": "hello@000000", "ranks_running": 1}


def test_a_run_that_is_replaced_is_shown_until_it_is_gone(
    supctl: Supctl, daemon: Daemon, job_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "SILENT_S", 0.0)
    stopping = shown(**OLD, state="stopping", waiting_for="rank 3 to end")
    stopped = shown(**OLD, state="stopped", is_final=True)
    fake = daemon(lambda _request: [stopping, stopping, stopped, Done(run=RUN)])
    result = supctl("start", "--replace", "--detach", job_file)
    assert result.code == 0
    assert result.err == (
        "replacing hello@000000: stopping it\n"
        "… waiting for rank 3 to end\n"
        "✓ hello@000000 stopped\n"
        "✓ accepted run hello@1a2b3c\n"
    )
    [request] = fake.requests
    assert isinstance(request, Start)
    assert request.replace


def test_a_replacement_whose_connection_is_lost_is_asked_for_again(
    supctl: Supctl, daemon: Daemon, job_file: str
) -> None:
    answers = iter([[shown(**OLD, state="stopping"), None], [Done(run=RUN)]])
    fake = daemon(lambda _request: next(answers))
    assert supctl("start", "--replace", "--detach", job_file).code == 0
    assert fake.requests[0] == fake.requests[1]


def test_a_dry_run_replaces_nothing(supctl: Supctl, daemon: Daemon, job_file: str) -> None:
    fake = daemon(accepting())
    assert supctl("start", "--replace", "--dry-run", job_file).code == 0
    [request] = fake.requests
    assert isinstance(request, Start)
    assert request.check_only


@pytest.mark.parametrize("mode", [(), ("--follow",)])
def test_a_job_that_does_not_start_in_time_is_left_to_itself(
    supctl: Supctl, daemon: Daemon, job_file: str, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "TICK_S", 0.01)
    end = threading.Event()
    daemon(accepting(shown(**STARTING), end))
    result = supctl("start", job_file, "--wait-timeout", "10ms", *mode)
    end.set()
    assert result.code == 124
    assert result.err.endswith(f"{RUN} has not started within 0.0s; it goes on without us\n→ supctl status {RUN}\n")


def test_a_run_that_does_not_make_way_in_time_is_not_waited_for(
    supctl: Supctl, daemon: Daemon, job_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "TICK_S", 0.01)
    end = threading.Event()
    daemon(lambda _request: [shown(**OLD, state="stopping"), end])
    result = supctl("start", job_file, "--replace", "--wait-timeout", "10ms")
    end.set()
    assert result.code == 124
    assert "hello@000000 was not gone within 0.0s; not accepted yet: supd starts it once" in result.err


def test_ctrl_c_leaves_a_replacement_under_way(
    supctl: Supctl, daemon: Daemon, job_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()
    daemon(lambda _request: [shown(**OLD, state="stopping"), end])

    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(follow.WaitLine, "show", interrupt)
    result = supctl("start", job_file, "--replace")
    end.set()
    assert (result.code, "detached; not accepted yet: supd starts it once the run before is gone" in result.err) == (
        130,
        True,
    )
