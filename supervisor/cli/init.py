"""Write a job file for what is found in its folder: a training script, and this node's GPUs or CPUs; or for a line of
torchrun, with --from.

Every line that may need a change has a comment. Needs no supd, imports nothing of the script, and never overwrites a
file unless told to.
"""

import argparse
import os
import re
import sys
from typing import NamedTuple

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.text import one_line
from supervisor.cli.context import Context
from supervisor.cli.screen import Screen
from supervisor.shell.devices import accelerators, count_cpus

USUAL_NAMES = ("train.py", "pretrain.py", "finetune.py", "main.py", "run.py")
"""Of several scripts that look alike, the first of these is taken."""
FILES_MAX = 1000
READ_BYTES = 256 * 1024
PLACEHOLDER = "train.py"


class Script(NamedTuple):
    """A Python file that may be a program."""

    name: str
    is_main: bool  # says `if __name__ == "__main__"`
    takes_arguments: bool
    has_torch: bool

    @property
    def is_likely(self) -> bool:
        """Whether it looks like a program."""
        return self.is_main or self.takes_arguments or self.has_torch or self.name in USUAL_NAMES

    @property
    def rank(self) -> tuple[bool, bool, bool, int, str]:
        """The smallest is the likeliest to be meant."""
        at = USUAL_NAMES.index(self.name) if self.name in USUAL_NAMES else len(USUAL_NAMES)
        return not self.is_likely, not self.has_torch, not (self.is_main or at < len(USUAL_NAMES)), at, self.name


class Machine(NamedTuple):
    """What this node has to give."""

    gpus: int
    how: str  # they were counted
    cpus: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl init`'s own arguments."""
    parser.add_argument("file", metavar="FILE", nargs="?", default="job.toml", help="default: job.toml")
    parser.add_argument(
        "--from",
        metavar="LINE",
        dest="line",
        help="write what a line of torchrun or suprun says, also one out of a script, with what stands "
        "before it; - reads it from standard input",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--force", action="store_true", help="overwrite a file that is there")
    how.add_argument("--stdout", action="store_true", help="print it; write nothing")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Look, write, and say what was found and what comes next."""
    file, screen = arguments.file, context.screen
    folder = os.path.dirname(file) or "."
    if arguments.line is not None:
        return _from_line(arguments, folder, screen)
    scripts = sorted(find_scripts(folder), key=lambda script: script.rank)
    script = scripts[0] if scripts else None
    gpus, how = accelerators(context.environ)
    machine = Machine(len(gpus), one_line(how), count_cpus()[0])
    done = _put(job_file(_job_name(script, folder), script, machine), arguments, screen)
    if script is None:
        screen.tell(f"{done}no Python script found in {folder}; put the path of yours for {PLACEHOLDER}")
    else:
        others = [other.name for other in scripts[1:] if other.is_likely or not script.is_likely]
        also = f" (also there: {', '.join(others[:3])})" if others else ""
        screen.tell(f"{done}{script.name}{also}, {machine.gpus} GPUs, {machine.cpus} CPUs")
    return _end(arguments, screen)


def _from_line(arguments: argparse.Namespace, folder: str, screen: Screen) -> int:
    """The same for a line of torchrun."""
    from supervisor.suprun.conversion import TEXT_MAX, convert  # only where it is wanted

    is_here = os.path.realpath(folder) == os.path.realpath(".")
    line = sys.stdin.read(TEXT_MAX + 1) if arguments.line == "-" else arguments.line
    job = convert(line, "" if is_here else os.path.realpath("."))
    screen.tell(f"{_put(job.text, arguments, screen)}{one_line(job.program)}")
    for note in job.notes:
        screen.tell(f"  {one_line(note)}")
    return _end(arguments, screen)


def _put(text: str, arguments: argparse.Namespace, screen: Screen) -> str:
    """Write or print it. Returns how to begin to say so."""
    if arguments.stdout:
        screen.print(text.rstrip("\n"))
    else:
        _write(arguments.file, text, is_forced=arguments.force)
    return f"{screen.err.paint('✓', 'green')} " + ("" if arguments.stdout else f"wrote {arguments.file}: ")


def _end(arguments: argparse.Namespace, screen: Screen) -> int:
    if screen.is_quiet and not arguments.stdout:
        screen.print(arguments.file)
    screen.tell(f"→ supctl validate {'FILE' if arguments.stdout else arguments.file}")
    return ExitCode.OK


# --- looking -----------------------------------------------------------------------------------------------------


def find_scripts(folder: str) -> list[Script]:
    """The Python files of a folder that may be programs."""
    scripts = []
    try:
        names = sorted(os.listdir(folder))[:FILES_MAX]
    except OSError:
        return []
    for name in names:
        is_wanted = name.endswith(".py") and name.isprintable() and not name.startswith((".", "test_", "_"))
        path = os.path.join(folder, name)
        if not is_wanted or name in ("setup.py", "conftest.py") or not os.path.isfile(path):
            continue
        try:
            with open(path, "rb") as file:
                text = file.read(READ_BYTES).decode(errors="replace")
        except OSError:
            continue
        script = Script(
            name=name,
            is_main=bool(re.search(r"^if\s+__name__\s*==\s*['\"]__main__['\"]", text, re.MULTILINE)),
            takes_arguments=bool(re.search(r"^\s*(?:import|from)\s+argparse\b", text, re.MULTILINE)),
            has_torch=bool(re.search(r"^\s*(?:import|from)\s+(?:torch|lightning|deepspeed)\b", text, re.MULTILINE)),
        )
        scripts.append(script)
    return scripts


def _job_name(script: Script | None, folder: str) -> str:
    """A name from the script, or from its folder where the script has a usual one."""
    stem = script.name.removesuffix(".py") if script is not None and script.name not in USUAL_NAMES else ""
    word = stem or os.path.basename(os.path.realpath(folder))
    return re.sub("[^a-z0-9]+", "-", word.lower()).strip("-")[:63].strip("-") or "my-job"


# --- writing -----------------------------------------------------------------------------------------------------


def job_file(name: str, script: Script | None, machine: Machine) -> str:
    """The text of a job file."""
    lines = [
        "# A job for supd. Every key, with its default: supctl help job.toml",
        "",
        f'name = "{name}"',
        "",
        "[run]",
    ]
    if script is None:
        lines.append(_line(f'script = "{PLACEHOLDER}"', "no script was found here: write the path of yours"))
    else:
        lines.append(f"script = {_quoted(script.name)}")
    lines += [
        _line('# args = ["--lr", "3e-4"]', "appended; what stands behind -- of supctl start comes after them"),
        _line('# python = "venv/bin/python"', "default: that of the shell in which the job is started"),
        _line('# env = { NAME = "value" }', "added to the environment of that shell"),
        "",
        "[topology]",
        _ranks(machine),
        "",
        "[restart]",
        _line("# max_restarts = 10", "after failures, over the whole run; -1: no limit"),
        _line("# never_on_exit = [2]", "exit codes after which a restart is of no use"),
        "",
        "[stop]",
        _line('grace = "30s"', "from SIGTERM to SIGKILL: time to save"),
        _line('# pre_signal = "SIGUSR1"', 'sent before SIGTERM, as "save now" …'),
        _line('# pre_wait = "1m"', "… and how long that may take"),
        "",
        "[progress]",
        _line("# total_steps = 10000", "for the ETA; steps are seen where the program calls supd.beat(step) …"),
        _line("# log_pattern = 'step (?P<step>[0-9]+)'", "… or prints them like this"),
        "",
        "[hang]",
        _line('# step_timeout = "10m"', "a rank without a step for so long hangs, and all are restarted"),
        "",
        "[checkpoint]",
        _line('# marker = "latest.txt"', "a file with the number of the last saved step"),
    ]
    return "".join(f"{line}\n" for line in lines)


def _ranks(machine: Machine) -> str:
    if machine.gpus:
        count = f"{machine.gpus} {'GPU' if machine.gpus == 1 else 'GPUs'} here"
        return _line('nproc_per_node = "auto"', f"a rank for each GPU: {count}")
    return _line("nproc_per_node = 1", f'ranks on each node: {machine.how}, {machine.cpus} CPUs; a number, or "auto"')


def _line(setting: str, comment: str) -> str:
    return f"{setting:<34}  # {comment}"


def _quoted(text: str) -> str:
    import msgspec

    return msgspec.json.encode(text).decode()


def _write(file: str, text: str, *, is_forced: bool) -> None:
    """Raises Refused where it is there, or cannot be written."""
    try:
        with open(file, "w" if is_forced else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        hint = f"supctl init --force {file}, or supctl init --stdout"
        raise Refused("C015", f"{file} is there already", hint=hint) from None
    except OSError as exc:
        hint = "name another FILE, or supctl init --stdout"
        raise Refused("C016", f"cannot write {file}: {exc.strerror or exc}", hint=hint) from None
