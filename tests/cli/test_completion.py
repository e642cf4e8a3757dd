"""`supctl completion`: candidates, quick and silent; and a real bash that is offered them."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.messages.control import GetStatus, Statuses
from supervisor.cli import completion, completion_scripts
from supervisor.cli.app import COMMANDS
from supervisor.cli.event_kinds import KIND_GROUPS, KINDS
from supervisor.shell.clock import boot_s
from tests.cli.conftest import LIMIT_S, Daemon, Script, Supctl, a_run, one_run

ROOT = Path(__file__).parents[2]
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than a user at a Tab key would."""
    monkeypatch.setattr(completion, "ANSWER_S", LIMIT_S)


def two_jobs() -> Script:
    one, other = a_run(generation=2), a_run(run="bert@00ff00", job="bert")
    answer = one_run(one)
    return lambda request: [Statuses(runs=(one, other))] if getattr(request, "run", "x") == "" else answer(request)


def words(supctl: Supctl, line: str) -> list[str]:
    """The candidates at the end of a command line, `supctl` left out."""
    result = supctl("completion", "--words", "--", *line.split(" "))
    assert (result.code, result.err) == (0, "")
    return result.out.splitlines()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("sta", ["start", "status"]),
        ("-q --color never des", ["describe"]),
        ("--color ", ["auto", "always", "never"]),
        ("--col", ["--color"]),
        ("--vers", ["--version"]),
        ("logs --foll", ["--follow"]),
        ("follow --stream ", ["out", "err"]),
        ("logs --stream=e", ["--stream=err"]),
        ("wait --for f", ["finished"]),
        ("completion z", ["zsh"]),
        ("start job.toml --set restart.pol", ["restart.policy="]),
        ("start job.toml --set restart.policy=", ["restart.policy=on-failure", "restart.policy=never"]),
        ("start --set=stop.abort_on_hang=f", ["--set=stop.abort_on_hang=false"]),
        ("start --set stop.finish_timeout=", ["stop.finish_timeout=off"]),
        ("start --set nosuch.key=", []),
        ("help job.t", ["job.toml"]),
        ("help job.toml stop.gra", ["stop.grace"]),
        ("help json s", ["status", "supd.toml"]),
        ("nosuch ", []),
        ("", [*COMMANDS]),
    ],
)
def test_what_supctl_knows_by_itself_needs_no_supd(supctl: Supctl, line: str, found: list[str]) -> None:
    assert words(supctl, line) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("logs ", ["hello", "bert"]),
        ("ps b", ["bert"]),
        ("stop hello@", ["hello@1a2b3c"]),
        ("logs hello -r ", ["all", "root", "failed", "stalled", "behind", "0", "1", "2", "3"]),
        ("logs hello --ranks 0,f", ["0,failed"]),
        ("logs hello --ranks 0,1", ["0,1"]),
        ("logs --gen ", ["all", "-1", "0", "1", "2"]),
        ("describe ", ["rank", "node", "hello", "bert"]),
        ("describe rank ", ["0", "1", "2", "3"]),
        ("describe rank 3 he", ["hello"]),
        ("describe n", ["node"]),
        ("drain --at n", ["next-checkpoint", "now"]),
        ("logs hello ", []),
        ("logs bert --gen=", ["--gen=all", "--gen=-1", "--gen=0"]),
        ("ps nosuch -r ", []),
        ("events --type ran", ["rank.*", "ranks.*"]),
        ("events --type job.failed,inc", ["job.failed,incident.*"]),
    ],
)
def test_jobs_ranks_and_generations_are_those_of_the_supd_that_answers(
    supctl: Supctl, daemon: Daemon, line: str, found: list[str]
) -> None:
    daemon(two_jobs())
    assert words(supctl, line) == found


@pytest.mark.parametrize("line", ["logs ", "stop h", "logs -r ", "logs --gen ", "describe rank "])
def test_without_supd_there_is_nothing_to_say_and_nothing_is_said(supctl: Supctl, line: str) -> None:
    assert words(supctl, line) in ([], ["rank"])


def test_supd_is_asked_once_and_the_variable_names_the_job(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPCTL_JOB", "bert")
    fake = daemon(
        lambda _request: [Statuses(runs=(a_run(generation=2), a_run(run="bert@00ff00", job="bert", ranks=1)))]
    )
    assert words(supctl, "logs -r 0") == ["0"]
    assert fake.requests == [GetStatus()]


def test_a_supd_that_hangs_is_not_waited_for(supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "ANSWER_S", 0.01)
    daemon(lambda _request: [], greeting=b"")
    assert words(supctl, "stop ") == []


def test_files_are_offered_with_their_folder_and_folders_go_on(
    supctl: Supctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    for name in ("jobs/a.toml", "jobs/.hidden", "jobs/odd\nname", "just.toml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert words(supctl, "start j") == ["jobs/", "just.toml"]
    assert words(supctl, "validate jobs/") == ["jobs/a.toml"]
    assert words(supctl, "start ~/ju") == ["~/just.toml"]
    assert words(supctl, "start just.toml -- jobs/.") == ["jobs/.hidden"]
    assert words(supctl, "start nosuch/") == []


def test_the_kinds_of_events_are_those_that_are_documented() -> None:
    page = (ROOT / "docs" / "events.md").read_text()
    assert re.findall(r"^\| `([a-z._]+)`", page, re.MULTILINE) == list(KINDS)
    assert KIND_GROUPS[:2] == ("change.*", "generation.*")


def test_completion_imports_nothing_slow() -> None:
    script = (
        "import sys; from supervisor.cli import app;"
        "app.run(['--addr', '/nowhere', 'completion', '--words', '--', 'logs', '']); print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=True
    )
    slow = {"asyncio", "json", "tomllib", "shutil", "subprocess", "structlog", "logging", "uvloop", "cryptography"}
    assert not slow & set(result.stdout.split())


# --- scripts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_put_where_its_shell_looks_for_it(
    supctl: Supctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "BASH_COMPLETION_USER_DIR"):
        monkeypatch.delenv(name, raising=False)
    result = supctl("completion", shell, "--install")
    places = {
        "bash": ".local/share/bash-completion/completions/supctl",
        "zsh": ".local/share/zsh/site-functions/_supctl",
        "fish": ".config/fish/completions/supctl.fish",
    }
    path = tmp_path / places[shell]
    assert (result.code, str(path) in result.err) == (0, True)
    assert path.read_text() == completion_scripts.SCRIPTS[shell]
    assert supctl("completion", shell).out == path.read_text()


def test_a_script_that_cannot_be_installed_is_one_clear_error(supctl: Supctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    result = supctl("completion", "fish", "--install")
    assert (result.code, result.err.startswith("error[C016]: cannot write /dev/null/")) == (1, True)


@pytest.mark.parametrize("argv", [[], ["tcsh"], ["--install"], ["bash", "--install", "--words"]])
def test_a_shell_that_is_not_known_is_a_usage_error(supctl: Supctl, argv: list[str]) -> None:
    assert supctl("completion", *argv).code == 2


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_sound_by_its_shell(shell: str, tmp_path: Path) -> None:
    """Only bash is sure to be there: of the others, this says what it can."""
    script = tmp_path / "script"
    script.write_text(completion_scripts.SCRIPTS[shell])
    program = shutil.which(shell)
    if program is None:
        assert shell != "bash"
        return
    subprocess.run([program, "-n", str(script)], timeout=LIMIT_S, check=True)


class Bash:
    """An interactive bash on a terminal, with a `supctl` that completes by the real one and else prints its words."""

    def __init__(self, folder: Path, address: str) -> None:
        stub = folder / "bin" / "supctl"
        stub.parent.mkdir()
        main = "import sys; from supervisor.cli import app, completion; completion.ANSWER_S = 20; sys.exit(app.main())"
        stub.write_text(
            f'#!/bin/sh\nif [ "$1" = completion ]; then PYTHONPATH={ROOT} exec {sys.executable} -c "{main}" "$@"; fi\n'
            "printf '<%s>' \"$@\"; echo .\n"
        )
        stub.chmod(0o755)
        (folder / "script").write_text(completion_scripts.BASH)
        env = {"PATH": f"{stub.parent}:{os.defpath}", "TERM": "dumb", "SUPD_ADDR": address, "HOME": str(folder)}
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
        os.close(slave)
        self.type("PS1=; bind 'set bell-style none'; source ./script; echo re''ady\n", "ready")

    def type(self, keys: str, until: str) -> str:
        """Press keys; what is on the terminal once `until` is there."""
        os.write(self._master, keys.encode())
        seen, give_up_s = "", boot_s() + LIMIT_S
        while until not in seen:
            readable, _, _ = select.select([self._master], [], [], max(give_up_s - boot_s(), 0))
            assert readable, f"waited for {until!r}, saw {seen!r}"
            seen += os.read(self._master, 4096).decode()
        return seen

    def completed(self, line: str) -> str:
        """The words that supctl is called with after Tab and Enter."""
        return self.type(f"supctl {line}\t\n", ">.").rpartition("\n<")[2].partition(">.")[0]

    def close(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)
        os.close(self._master)


@pytest.fixture
def bash(tmp_path: Path, address: str) -> Iterator[Bash]:
    shell = Bash(tmp_path, address)
    yield shell
    shell.close()


def test_a_real_bash_completes_commands_options_jobs_runs_and_settings(bash: Bash, daemon: Daemon) -> None:
    daemon(two_jobs())
    assert bash.completed("resta") == "restart"
    assert bash.completed("logs --foll") == "logs><--follow"
    assert bash.completed("logs hel") == "logs><hello"
    assert bash.completed("logs hello@1") == "logs><hello@1a2b3c"
    assert bash.completed("logs hello@") == "logs><hello@1a2b3c"
    assert bash.completed("start x --set restart.pol") == "start><x><--set><restart.policy="
    assert bash.completed("start x --set restart.policy=n") == "start><x><--set><restart.policy=never"
    assert bash.completed("start --set=restart.policy=n") == "start><--set=restart.policy=never"
    assert bash.completed("--color ne") == "--color><never"
    assert bash.completed("logs hello -r 0,\t\t\t") == "logs><hello><-r><0,"
    assert bash.completed("logs hello -r 0,al") == "logs><hello><-r><0,all"


def test_a_real_bash_completes_files_with_odd_names(bash: Bash, tmp_path: Path) -> None:
    (tmp_path / "my $job.toml").touch()
    assert bash.completed("start my") == "start><my $job.toml"
    assert bash.completed("start ~/my") == f"start><{tmp_path}/my $job.toml"
    assert bash.completed("start my\\ ") == "start><my $job.toml"
    assert bash.completed("start ~/my\\ \\$j") == f"start><{tmp_path}/my $job.toml"
    (tmp_path / "my other, job.toml").touch()
    assert bash.completed("start my\\ o") == "start><my other, job.toml"


def test_a_link_to_itself_hides_no_other_file(supctl: Supctl, tmp_path: Path) -> None:
    (tmp_path / "a.toml").touch()
    (tmp_path / "loop").symlink_to("loop")
    assert supctl("completion", "--words", "--", "start", f"{tmp_path}/").out.split() == [
        f"{tmp_path}/a.toml",
        f"{tmp_path}/loop",
    ]
