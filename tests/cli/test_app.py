"""The frame around every command: help, wrong words, pipes, and the documents that describe it."""

import io
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from protocol.exit_code import ExitCode
from protocol.messages.control import Done, End, LogChunk, Resolve, Statuses, StopRun
from supervisor.cli.app import ALIASES, COMMANDS, command_parser
from supervisor.cli.arguments import HELP_COLUMNS
from tests.cli.conftest import LIMIT_S, Daemon, Supctl, Terminal, a_run, one_run
from tests.cli.json_check import problems

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_the_overview_names_every_command(supctl: Supctl, argv: list[str]) -> None:
    result = supctl(*argv)
    assert result.code == 0
    assert all(re.search(rf"^  {name} +\S", result.out, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("argv", [["--help", "stop"], ["-q", "-h", "stop"], ["--version", "stop"]])
def test_whoever_asks_for_help_or_the_version_gets_that_and_nothing_is_done(
    supctl: Supctl, daemon: Daemon, argv: list[str]
) -> None:
    fake = daemon(lambda _request: [])
    assert supctl(*argv).code == 0
    assert fake.requests == []


def test_the_version_of_supctl_can_be_had_without_a_daemon(supctl: Supctl) -> None:
    result = supctl("--version")
    assert (result.code, result.out, result.err) == (0, f"supctl {version('supd')}\n", "")


def test_global_options_may_stand_before_and_behind_the_command(supctl: Supctl, daemon: Daemon) -> None:
    daemon(lambda _request: [Statuses(runs=(a_run(),))])
    assert supctl("-q", "status").out == "hello@1a2b3c\n"
    assert supctl("status", "-q", "--color=never").out == "hello@1a2b3c\n"


def test_json_may_stand_before_the_command_too(supctl: Supctl, daemon: Daemon) -> None:
    daemon(lambda _request: [Statuses(runs=(a_run(),))])
    assert supctl("--json", "status").out.startswith('{"schema":"supctl.status/1"')


@pytest.mark.parametrize(
    ("alias", "argv"),
    [("list", ["status"]), ("ls", ["status"]), ("log", ["logs"]), ("tail", ["logs"]), ("follow", ["logs", "-f"])],
)
def test_a_name_that_people_guess_is_the_command_they_mean(
    supctl: Supctl, daemon: Daemon, alias: str, argv: list[str]
) -> None:
    chunk = LogChunk(generation=0, node="n1", rank=0, stream="out", data=b"line\n")
    over = a_run(state="succeeded", is_final=True)
    fake = daemon(one_run(over, chunk, Statuses(runs=(over,)), End()))
    meant = supctl(*argv)
    asked = list(fake.requests)
    assert supctl(alias) == meant
    assert fake.requests == asked * 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["stauts"], "did you mean `status`?"),
        (["lst"], "did you mean"),
        (["quite-another"], "no command 'quite-another'"),
        (["cordon", "n1"], "no command 'cordon'"),
        ([""], "no command ''"),
        (["logs -f"], "no command 'logs -f'"),
        (["--bogus", "status"], "unrecognized arguments: --bogus"),
        (["logs", "--folow"], "unrecognized arguments: --folow; did you mean `--follow`?"),
        (["logs", "--tial=3"], "did you mean `--tail`?"),
        (["--colour", "never", "status"], "did you mean `--color`?"),
        (["status", "--bogus"], "unrecognized arguments: --bogus"),
        (["logs", "--foll"], "unrecognized arguments: --foll; did you mean `--follow`?"),
        (["stat"], "did you mean `status`?"),
        (["start", "--wait", "3s", "a.toml"], "did you mean `--wait-timeout`?"),
        (["start", "a.toml", "--lr", "3"], "unrecognized arguments: --lr 3; arguments of the script stand behind `--`"),
        (["--color", "blue", "status"], "invalid choice"),
        (["--color"], "expected one argument"),
    ],
)
def test_a_wrong_word_is_a_usage_error_with_a_next_step(supctl: Supctl, argv: list[str], words: str) -> None:
    result = supctl(*argv)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert re.search(r"\n→ supctl .*--help\n$", result.err)


def test_json_of_nothing_says_what_it_goes_with(supctl: Supctl) -> None:
    result = supctl("--json")
    assert (result.code, result.out) == (2, "")
    assert '"message":"--json goes with a command","hint":"supctl status --json"' in result.err


@pytest.mark.parametrize("command", ["ps", "logs", "events", "wait", "restart", "describe", "stop"])
def test_the_variable_names_the_job_where_no_argument_does(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("SUPCTL_JOB", "nosuch")
    fake = daemon(one_run(a_run(is_final=True, state="stopped"), End()))
    result = supctl(command)
    assert (result.code, result.out) == (3, "")
    assert "(SUPCTL_JOB names it)" in result.err
    assert "unset SUPCTL_JOB" in result.err
    assert [request.word for request in fake.requests if isinstance(request, Resolve)] == ["nosuch"]


@pytest.mark.parametrize(
    "argv",
    [
        *([command, ""] for command in ("ps", "logs", "events", "wait", "restart", "describe", "stop", "status")),
        ["describe", "rank", "0", ""],
    ],
)
def test_an_empty_job_never_means_the_only_one_that_there_is(supctl: Supctl, daemon: Daemon, argv: list[str]) -> None:
    fake = daemon(one_run(a_run(), End()))
    result = supctl(*argv)
    assert (result.code, result.out, fake.requests) == (2, "", [])
    assert "an empty JOB names none" in result.err


def test_an_empty_variable_is_none(supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPCTL_JOB", "")
    daemon(one_run(a_run(), End()))
    assert supctl("ps").code == 0


def test_an_argument_wins_over_the_variable(supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPCTL_JOB", "nosuch")
    daemon(one_run(a_run(), End()))
    assert supctl("ps", "hello").code == 0
    missing = supctl("ps", "other")
    assert (missing.code, "SUPCTL_JOB" in missing.err) == (3, False)


def test_the_variable_names_no_job_where_all_are_meant(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPCTL_JOB", "nosuch")
    fake = daemon(lambda _request: [Done()])
    assert supctl("stop", "--all").code == 0
    assert fake.requests == [StopRun(all_runs=True)]


def test_asking_for_one_command_imports_no_other() -> None:
    script = (
        "import sys; from supervisor.cli import app; app.run(['--addr', '/nowhere', 'status']); print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=True
    )
    loaded = set(result.stdout.split())
    assert "supervisor.cli.status" in loaded
    others = {f"supervisor.cli.{name}" for name in COMMANDS} - {"supervisor.cli.status"}
    slow = {"asyncio", "json", "tomllib", "shutil", "subprocess", "structlog", "logging", "uvloop"}
    assert not loaded & (others | slow)


@pytest.mark.parametrize("argv", [["--help"], ["help", "C001"], ["completion", "bash"]])
def test_what_needs_no_supd_does_not_load_what_speaks_with_it(argv: list[str]) -> None:
    script = f"import sys; from supervisor.cli import app; app.run({argv}); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=True
    )
    assert result.stdout
    assert not {"supervisor.cli.client", "msgspec", "socket"} & set(result.stderr.split())


def test_a_reader_that_has_seen_enough_ends_supctl_without_a_word(daemon: Daemon, address: str) -> None:
    many = LogChunk(generation=0, node="n1", rank=0, stream="out", data=b"line\n" * 100_000)

    daemon(one_run(a_run(), many, many))
    read_end, write_end = os.pipe()
    os.close(read_end)
    result = subprocess.run(
        [sys.executable, "-c", "import sys; from supervisor.cli.app import main; sys.exit(main())", "logs"],
        env=os.environ | {"SUPD_ADDR": address},
        stdout=write_end,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        timeout=LIMIT_S,
    )
    os.close(write_end)
    assert (result.returncode, result.stderr) == (ExitCode.PIPE_CLOSED, b"")


def test_every_command_option_and_exit_code_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    missing = [name for name in (*COMMANDS, *ALIASES) if f"`{name}" not in text and f"supctl {name}" not in text]
    for name in COMMANDS:
        options = {option for action in command_parser(name)._actions for option in action.option_strings}
        missing += [f"{name} {option}" for option in options - {"-h", "--help"} if f"`{option}" not in text]
    missing += [str(int(code)) for code in ExitCode if f"| {int(code)} |" not in text]
    assert missing == []


@pytest.mark.parametrize(
    ("redirection", "code", "said"), [(">/dev/full", ExitCode.FAILED, "error[C014]"), (">&-", 0, "")]
)
def test_output_that_goes_nowhere_is_no_traceback(redirection: str, code: int, said: str) -> None:
    command = f'"$0" -P -c "import sys; from supervisor.cli.app import main; sys.exit(main())" --help {redirection}'
    result = subprocess.run(
        ["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (result.returncode, said in result.stderr, "Traceback" in result.stderr) == (code, True, False)


def test_messages_that_go_nowhere_change_no_exit_code(daemon: Daemon, address: str) -> None:
    daemon(one_run(a_run()))
    command = (
        '"$0" -P -c "import sys; from supervisor.cli.app import main; sys.exit(main())" status no-such 2>/dev/full'
    )
    result = subprocess.run(["sh", "-c", command, sys.executable], env=os.environ | {"SUPD_ADDR": address}, cwd=ROOT)
    assert result.returncode == ExitCode.NOT_FOUND


def test_a_run_whose_id_cannot_be_printed_is_named_on_stderr(daemon: Daemon, address: str, tmp_path: Path) -> None:
    daemon(lambda _request: [Done(run="hello@1a2b3c")])
    (tmp_path / "job.toml").write_text("")
    command = f"start -q --detach {tmp_path}/job.toml >/dev/full"
    command = f'"$0" -P -c "import sys; from supervisor.cli.app import main; sys.exit(main())" {command}'
    result = subprocess.run(
        ["sh", "-c", command, sys.executable],
        env=os.environ | {"SUPD_ADDR": address},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (result.returncode, "hello@1a2b3c" in result.stderr, "C014" in result.stderr) == (1, True, True)


@pytest.mark.parametrize("columns", [80, 72])
@pytest.mark.parametrize("command", ["start", "logs", "wait"])
def test_help_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, command: str, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", Terminal(io.BytesIO(), encoding="utf-8"))
    lines = command_parser(command).format_help().splitlines()
    assert columns - 10 < max(map(len, lines)) <= columns


@pytest.mark.parametrize("command", COMMANDS)
def test_help_in_a_file_is_as_wide_in_prose_as_in_its_options(command: str) -> None:
    lines = command_parser(command).format_help().splitlines()
    assert max(map(len, lines)) <= HELP_COLUMNS


@pytest.mark.parametrize("columns", [200, 72])
def test_the_usage_of_start_tells_of_the_scripts_arguments(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", Terminal(io.BytesIO(), encoding="utf-8"))
    usage = command_parser("start").format_help().partition("\n\n")[0]
    assert " ".join(usage.split()).endswith("FILE [-- ARG ...]")


def test_help_has_the_characters_of_the_stream() -> None:
    command = '"$0" -P -c "import sys; from supervisor.cli.app import main; sys.exit(main())" help logs'
    env = os.environ | {"LC_ALL": "C"}
    result = subprocess.run(["sh", "-c", command, sys.executable], env=env, capture_output=True, cwd=ROOT, check=True)
    assert b"`0 | text` is stdout, `0 ! text` is stderr" in result.stdout


def test_output_that_goes_nowhere_is_an_error_document_for_who_asked_for_documents() -> None:
    command = '"$0" -P -c "import sys; from supervisor.cli.app import main; sys.exit(main())" version --json >/dev/full'
    result = subprocess.run(
        ["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (result.returncode, problems("error", result.stderr)) == (ExitCode.FAILED, [])
    assert json.loads(result.stderr)["code"] == "C014"
