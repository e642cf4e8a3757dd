"""The frame around every command: help, wrong words, pipes, and the documents that describe it."""

import argparse
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from protocol.messages.control import LogChunk, Statuses
from supervisor.cli.app import ALIASES, COMMANDS
from supervisor.cli.exit_code import ExitCode
from tests.cli.conftest import LIMIT_S, Daemon, Supctl, a_run, one_run

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


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["stauts"], "did you mean `status`?"),
        (["lst"], "did you mean"),
        (["quite-another"], "no command 'quite-another'"),
        (["--bogus", "status"], "unrecognized arguments: --bogus"),
        (["status", "--bogus"], "unrecognized arguments: --bogus"),
        (["logs", "--foll"], "unrecognized arguments: --foll"),
        (["--color", "blue", "status"], "invalid choice"),
        (["--color"], "expected one argument"),
    ],
)
def test_a_wrong_word_is_a_usage_error_with_a_next_step(supctl: Supctl, argv: list[str], words: str) -> None:
    result = supctl(*argv)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert re.search(r"\n→ supctl .*--help\n$", result.err)


def test_asking_for_one_command_imports_no_other() -> None:
    script = (
        "import sys; from supervisor.cli import app; app.run(['--addr', '/nowhere', 'status']); print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=True
    )
    loaded = set(result.stdout.split())
    assert "supervisor.cli.status" in loaded
    others = {f"supervisor.cli.{command.module}" for command in COMMANDS.values()} - {"supervisor.cli.status"}
    slow = {"asyncio", "json", "tomllib", "shutil", "subprocess", "structlog", "logging", "uvloop"}
    assert not loaded & (others | slow)


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
    for command in COMMANDS.values():
        parser = argparse.ArgumentParser()
        import_module(f"supervisor.cli.{command.module}").add_arguments(parser)
        options = {option for action in parser._actions for option in action.option_strings}
        missing += [f"{command.module} {option}" for option in options - {"-h", "--help"} if f"`{option}" not in text]
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
