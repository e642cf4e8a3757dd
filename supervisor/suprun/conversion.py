"""From a launch line, as it stands in a script or in notes, to the job file that says the same: `supctl init --from`.

What only the shell that runs the line would know, like `$SLURM_NNODES`, is left as it is told, and is told.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from protocol.errors import Refused
from protocol.job import is_reserved
from supervisor.suprun.job import job_toml
from supervisor.suprun.line import NO_LAUNCH, WORDS_MAX, read_line, refused, split_line
from supervisor.suprun.plan import plan_of
from supervisor.suprun.shell_words import TEXT_MAX, NotShell, Piece, Shell, Word
from supervisor.suprun.templates import argument, doubled

__all__ = ["TEXT_MAX", "Converted", "convert"]

LAUNCHERS = ("torchrun", "suprun")
FRONT_VARIABLES = ("PYTHON_EXEC", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
"""In front of a line, they are for the launcher; and all that begin with PET_."""

_NOT_NEEDED = ("rdzv_backend", "rdzv_endpoint", "node_rank", "master_addr", "master_port", "local_addr")
"""How the nodes find each other is supd's to know."""

_PLACES = {
    "nnodes": "topology.nnodes",
    "nproc_per_node": "topology.nproc_per_node",
    "max_restarts": "restart.max_restarts",
    "role": "topology.role",
    "shutdown_timeout": "stop.grace",
}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
_NAME = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_HELD = re.compile("\ue000([0-9]+)\ue001")
"""What stands for a variable while the line is read."""


class Converted(NamedTuple):
    """A job file, and what is to be told of it, one line each."""

    text: str
    program: str
    notes: tuple[str, ...]


class _Launch(NamedTuple):
    """A command that launches something."""

    front: list[Word]  # what stands before the launcher
    python: str  # the interpreter, where the line names it by a path
    words: list[Word]  # of the launcher
    before: list[list[str]]  # commands that change the folder


def convert(text: str, folder: str = "") -> Converted:
    """The job file that says what the first launch line of a text says. Raises Refused.

    `folder`: where the line is meant to be run, "" for the folder of the job file.
    """
    try:
        shell = Shell(text)
    except NotShell as exc:
        raise refused(NO_LAUNCH, f"a shell would not take this line: {exc}", _EXAMPLE) from None
    launch = _find(shell.commands)
    held = _Held()
    words = [held.hold(word) for word in launch.words[:WORDS_MAX]]
    notes = ["a comment behind a backslash ends the line in a shell; it is left out"] if shell.has_broken_joins else []
    notes += [f"`{' '.join(cd)}` before it is left out: run.workdir says where ranks run" for cd in launch.before]
    try:
        return _convert(launch, words, held, folder, notes)
    except Refused as exc:
        raise refused(exc.code, held.told(str(exc)), held.told(exc.hint)) from None


_EXAMPLE = "supctl init --from 'torchrun --nproc-per-node=8 train.py'"


def _find(commands: Sequence[Sequence[Word]]) -> _Launch:
    """The first command that launches something. Raises Refused."""
    before: list[list[str]] = []
    for command in commands:
        words = [word.told for word in command]
        if words[0] in ("cd", "pushd"):
            before.append(words)
        for at, word in enumerate(words):
            if word.rpartition("/")[2] in LAUNCHERS:
                return _Launch([*command[:at]], "", [*command[at + 1 :]], before)
            if _PYTHON.fullmatch(word) and "-m" in words[at:]:
                module_at = words.index("-m", at) + 1
                module = words[module_at] if module_at < len(words) else ""
                if module == "torch.distributed.launch":
                    message = "torch.distributed.launch hands --local-rank to the script, which supd does not"
                    raise refused(NO_LAUNCH, message, "read LOCAL_RANK of the environment, and write torchrun …")
                if module == "torch.distributed.run":
                    return _Launch([*command[:at]], word if "/" in word else "", [*command[module_at + 1 :]], before)
    raise refused(NO_LAUNCH, "there is no torchrun or suprun in this line", _EXAMPLE)


class _Held:
    """Stands in for what the shell would fill in, while a line is read that knows of no shell."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def hold(self, word: Word) -> str:
        """The word, with marks for its variables."""
        return "".join(self._mark(piece) if piece.is_variable else piece.text for piece in word.pieces)

    def _mark(self, piece: Piece) -> str:
        self._pieces.append(piece)
        return f"\ue000{len(self._pieces) - 1}\ue001"

    def told(self, text: str) -> str:
        """With the variables as they were told."""
        return _HELD.sub(lambda mark: self._pieces[int(mark[1])].text, text)

    def template(self, text: str, notes: list[str]) -> str:
        """As [run] args and [run] env have it: variables of the environment are filled in on the node."""
        parts = _HELD.split(text)
        if len(parts) == 1:
            return argument(text)
        for i in range(1, len(parts), 2):
            variable = self._pieces[int(parts[i])].text
            found = _NAME.fullmatch(variable)
            name = found[1] if found else "HOME" if variable == "~" else ""
            if not name:
                notes.append(f"{variable} stands in the file as it is: only the shell that runs the line knows it")
            parts[i] = f"${{{name}}}" if name else doubled(variable)
            parts[i - 1] = doubled(parts[i - 1])
        return "".join([*parts[:-1], doubled(parts[-1])])


def _convert(launch: _Launch, words: list[str], held: _Held, folder: str, notes: list[str]) -> Converted:
    env, variables, nodes = _front(launch.front, held, notes)
    given, rest = split_line(words)
    known = [found for found in given if not _HELD.search(found.value or "")]
    unknown = {found.option.dest: held.told(found.value or "") for found in given if found not in known}
    options = [word for found in known if found.option.dest not in _NOT_NEEDED for word in found.words]
    named = {found.option.dest for found in given}
    if nodes and "nnodes" not in named:
        options.append(f"--nnodes={nodes}")
    if "nproc_per_node" in unknown:
        options.append("--nproc-per-node=auto")
    is_told = "PET_NNODES" in variables or any(option.startswith("--nnodes=") for option in options)
    if is_told and "standalone" not in named:
        options += ["--rdzv-backend=c10d", "--rdzv-endpoint=fleet"]
    plan, told = plan_of(read_line([*options, "--", *rest] if rest else options, variables), variables)
    notes += told
    for dest, value in unknown.items():
        if dest in _PLACES:
            notes.append(f"{_PLACES[dest]}: the line says {value}, which only the shell that runs it knows: write it")
    if _HELD.search(plan.program):
        notes.append(f"run.{plan.how}: the line says {held.told(plan.program)}: write its path")
        if not {"name", "rdzv_id"} & {found.option.dest for found in known}:
            plan = msgspec.structs.replace(plan, name="job")
    plan = msgspec.structs.replace(
        plan,
        program=held.told(plan.program),
        args=tuple(held.template(arg, notes) for arg in rest[1:]),
        python=launch.python or plan.python,
        env=env,
    )
    comments = {_PLACES[dest]: f"the line says {value}" for dest, value in unknown.items() if dest in _PLACES}
    return Converted(job_toml(plan, folder, comments), plan.program, tuple(dict.fromkeys(notes)))


def _front(front: Sequence[Word], held: _Held, notes: list[str]) -> tuple[dict[str, str], dict[str, str], str]:
    """What stands before the launcher: variables of the ranks, those for the launcher, and srun's number of nodes."""
    env: dict[str, str] = {}
    own: dict[str, str] = {}
    others: list[str] = []
    for word in front:
        if not _ASSIGNMENT.match(word.told):
            others.append(word.told)
            continue
        if others and others[0] != "env":
            others.append(word.told)
            continue
        name, _, value = held.hold(word).partition("=")
        if name.startswith("PET_") or name in FRONT_VARIABLES:
            if name.removeprefix("PET_").lower() not in _NOT_NEEDED:
                own[name] = held.told(value)
        elif is_reserved(name):
            notes.append(f"{name}: supd sets it itself for every rank; it is left out")
        else:
            env[name] = held.template(value, notes)
    if others and others != ["env"]:
        notes.append(f"`{' '.join(others)}` in front is left out: supd starts the ranks on all nodes itself")
    return env, own, _nodes_of(others)


def _nodes_of(words: Sequence[str]) -> str:
    """How many nodes srun is told to take, as --nnodes has it; "" where it is not told."""
    if not words or words[0].rpartition("/")[2] != "srun":
        return ""
    found = re.search(r"(?:^| )(?:-N ?|--nodes[= ])([0-9]{1,5})(?:-([0-9]{1,5}))?(?= |$)", " ".join(words[1:]))
    return "" if found is None else ":".join(filter(None, found.groups()))
