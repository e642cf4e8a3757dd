"""Completes words of supctl's command line: prints a script for bash, zsh or fish, or (--install) puts it in place.

The scripts call `supctl completion --words -- WORDS`, WORDS being what stands behind `supctl` with the unfinished word
last; it prints one candidate a line. Without a supd that answers at once there are just no jobs and nodes among them.
"""

import argparse
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from protocol.errors import Refused, SupdError
from protocol.exit_code import ExitCode
from supervisor.cli.arguments import Parser, UsageError
from supervisor.cli.context import Context
from supervisor.cli.event_kinds import KIND_GROUPS
from supervisor.shell.clock import boot_s

if TYPE_CHECKING:
    from protocol.messages.control import RunStatus

ANSWER_S = 0.1
"""How long supd may take, all in all: nobody waits for a Tab key."""
FILES_MAX = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl completion`'s own arguments."""
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--install", action="store_true", help="write the script where that shell looks for a user's own")
    how.add_argument("--words", action="store_true", help="candidates for the last of the words behind --")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print candidates, or a script; or install that."""
    if arguments.words:
        context.screen.print(*candidates(arguments.rest, context))
        return ExitCode.OK
    if arguments.shell is None:
        raise UsageError("complete for which shell?", "supctl completion bash (or zsh, or fish)")
    from supervisor.cli import completion_scripts

    script = completion_scripts.SCRIPTS[arguments.shell]
    if not arguments.install:
        context.screen.print(script.rstrip("\n"))
        return ExitCode.OK
    path = completion_scripts.path_for(arguments.shell, context.environ)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
    except OSError as exc:
        hint = f"supctl completion {arguments.shell} > FILE, and source that"
        raise Refused("C016", f"cannot write {path}: {exc.strerror or exc}", hint=hint) from None
    context.screen.tell(f"{context.screen.err.paint('✓', 'green')} written to {path}")
    context.screen.tell(completion_scripts.AFTERWARDS[arguments.shell].format(os.path.dirname(path)))
    return ExitCode.OK


def candidates(words: Sequence[str], context: Context) -> list[str]:
    """What the last of `words` can become, as whole words; one that ends in `=` or `/` goes on."""
    from supervisor.cli.app import ALIASES, COMMANDS, command_parser, global_parser, global_words

    *before, current = words or [""]
    at = global_words(before)
    if at >= len(before):
        line = _Line(global_parser(), before, context)
        return line.complete(current) if line.is_open or current.startswith("-") else _matching(current, COMMANDS)
    name = ALIASES.get(before[at], before[at]).partition(" ")[0]
    return _Line(command_parser(name), before[at + 1 :], context).complete(current) if name in COMMANDS else []


class _Line:
    """The arguments of one command up to the word that is completed."""

    def __init__(self, parser: Parser, before: Sequence[str], context: Context) -> None:
        self._context = context
        self._options = {name: action for action in parser._actions for name in action.option_strings}
        self._places = [action for action in parser._actions if not action.option_strings]
        self._given: list[str] = []  # arguments that are no options, nor values of some
        self._open: argparse.Action | None = None  # the option whose value comes next
        self._is_rest = "--" in before
        for word in before:
            if self._open is not None:
                self._open = None
            elif word.startswith("-") and word != "-":
                action = self._options.get(word)
                self._open = action if action is not None and action.nargs != 0 else None
            else:
                self._given.append(word)

    @property
    def is_open(self) -> bool:
        """Whether the value of an option comes next."""
        return self._open is not None

    def complete(self, current: str) -> list[str]:
        """Whole words that `current` can become."""
        if self._is_rest:
            return _files(current)
        if self._open is not None:
            return self._values(self._open, current)
        option, equals, value = current.partition("=")
        if equals and option in self._options:
            return [f"{option}={one}" for one in self._values(self._options[option], value)]
        if current.startswith("-"):
            return _matching(current, self._options)
        places = self._places[len(self._given) :] or [place for place in self._places if place.nargs in ("*", "+")]
        return self._values(places[0], current) if places else []

    def _values(self, action: argparse.Action, current: str) -> list[str]:
        if action.choices is not None:
            return _matching(current, map(str, action.choices))
        complete = self._BY_METAVAR.get(str(action.metavar))
        return complete(self, current) if complete is not None else []

    def _of_job(self, current: str) -> list[str]:
        return _matching(current, self._jobs(has_runs="@" in current))

    def _of_ranks(self, current: str) -> list[str]:
        ranks = self._ranks(self._given[0] if self._given else "")
        return _listed(current, ["all", "root", "failed", "stalled", "behind", *ranks]) if ranks else []

    def _of_generation(self, current: str) -> list[str]:
        run = self._run(self._given[0] if self._given else "")
        return _matching(current, ["all", "-1", *map(str, range((run.generation or 0) + 1))]) if run else []

    def _of_what(self, current: str) -> list[str]:
        """What `describe` describes."""
        match self._given:
            case []:
                return _matching(current, ["rank", "node", *self._jobs(has_runs="@" in current)])
            case ["node"]:
                return self._of_node(current)
            case ["rank"]:
                return _matching(current, self._ranks(""))
            case ["rank", _]:
                return self._of_job(current)
            case _:
                return []

    def _of_node(self, current: str) -> list[str]:
        return _matching(current, self._nodes())

    def _of_topic(self, current: str) -> list[str]:
        return _matching(current, _topics(self._given))

    _BY_METAVAR: Mapping[str, "Callable[[_Line, str], list[str]]"] = {
        "JOB": _of_job,
        "RANKS": _of_ranks,
        "GEN": _of_generation,
        "WHAT": _of_what,
        "NODE": _of_node,
        "WHEN": lambda _line, current: _matching(current, ("next-checkpoint", "now")),
        "TOPIC": _of_topic,
        "KEY": _of_topic,
        "FILE": lambda _line, current: _files(current),
        "PATH": lambda _line, current: _files(current),
        "KEY=VAL": lambda _line, current: _settings(current),
        "KINDS": lambda _line, current: _listed(current, KIND_GROUPS),
    }

    # --- what only supd knows ------------------------------------------------------------------------------------

    def _runs(self) -> Sequence["RunStatus"]:
        from protocol.messages.control import GetStatus, Statuses

        client = self._context.client.hurried(boot_s() + ANSWER_S)
        try:
            return client.ask(GetStatus(), Statuses).runs
        except SupdError:
            return ()

    def _nodes(self) -> list[str]:
        from protocol.messages.control import GetNodes, Nodes

        client = self._context.client.hurried(boot_s() + ANSWER_S)
        try:
            return [node.node for node in client.ask(GetNodes(), Nodes).nodes]
        except SupdError:
            return []

    def _jobs(self, *, has_runs: bool) -> list[str]:
        return [run.run if has_runs else run.job for run in self._runs()]

    def _run(self, word: str) -> "RunStatus | None":
        """The run that is meant, as far as can be said without asking once more: the newest that it can be."""
        runs = self._runs()
        word = word or self._context.client.default_job
        meant = (
            [run for run in runs if word in (run.run, run.job)] if word else [run for run in runs if not run.is_final]
        )
        return max(meant or ([] if word else runs), key=lambda run: run.submitted_wall_s, default=None)

    def _ranks(self, word: str) -> list[str]:
        run = self._run(word)
        return [*map(str, range(run.ranks or 0))] if run is not None else []


def _matching(current: str, known: Iterable[str]) -> list[str]:
    """Each once, in order."""
    return [*dict.fromkeys(word for word in known if word.startswith(current))]


def _listed(current: str, known: Iterable[str]) -> list[str]:
    """What the last piece of a list with commas can become."""
    lead, comma, last = current.rpartition(",")
    return [f"{lead}{comma}{word}" for word in _matching(last, known)]


def _files(current: str) -> list[str]:
    """Files and folders, these with a slash behind; none that cannot stand on a line."""
    folder, slash, start = current.rpartition("/")
    found = []
    try:
        with os.scandir(os.path.expanduser(folder + slash) or ".") as entries:
            for entry in itertools.islice(entries, FILES_MAX):
                is_wanted = entry.name.startswith(start) and (start or not entry.name.startswith("."))
                if is_wanted and entry.name.isprintable():
                    found.append(f"{folder}{slash}{entry.name}{'/' * _is_folder(entry)}")
    except OSError:
        return []
    return sorted(found)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _settings(current: str) -> list[str]:
    """Keys of a job file, with `=` behind; behind that, the values of those that have a few."""
    from protocol.job_schema import SCHEMA

    known = {"name": SCHEMA.top["name"]}
    known |= {f"{table}.{name}": key for table, keys in SCHEMA.tables.items() for name, key in keys.items()}
    path, equals, value = current.partition("=")
    if not equals:
        return _matching(current, (f"{name}=" for name in known))
    return [
        f"{path}={word}" for word in _matching(value, _words(known[path].check.json_schema) if path in known else ())
    ]


def _topics(given: Sequence[str]) -> list[str]:
    """What `help` explains."""
    from supervisor.cli.app import COMMANDS
    from supervisor.cli.help import FILES, SCHEMAS

    match given:
        case []:
            return [*COMMANDS, *FILES, SCHEMAS]
        case [file] if file in FILES:
            from supervisor.cli import reference

            return [*reference.key_paths(reference.FILES[file].schema)]
        case [word] if word == SCHEMAS:
            from supervisor.cli.documents import DOCUMENTS

            return [*DOCUMENTS, *FILES]
        case _:
            return []


def _words(schema: Mapping[str, object]) -> list[str]:
    """The words among the values that a JSON Schema takes."""
    match schema:
        case {"enum": [*words]}:
            return [word for word in words if isinstance(word, str)]
        case {"anyOf": [*parts]}:
            return [word for part in parts if isinstance(part, dict) for word in _words(part)]
        case {"const": str(word)}:
            return [word]
        case {"type": "boolean"}:
            return ["true", "false"]
        case _:
            return []
