"""Every exception this project raises on purpose.

Exception
├── SupdError                  an operator can act on it; shown without a traceback
│   ├── JobInvalid             job.toml has problems (all of them at once)
│   ├── ConfigInvalid          supd.toml has problems
│   └── Refused                a request that this fleet will not carry out
├── ProtocolError
│   ├── LocalProtocolError     we would have sent nonsense
│   └── RemoteProtocolError    they sent nonsense: costs that connection, nothing else
└── InvalidTransition          our own bug; never caught
"""

from collections.abc import Sequence
from typing import NamedTuple

from protocol.exit_code import ExitCode

MAX_PROBLEMS = 100  # of a file: one with more is not the file that was meant


class SupdError(Exception):
    """Base of the errors an operator can act on; printed without a traceback.

    `code` is a letter and three digits and stays stable: docs and scripts refer to it
    (J job file, S supd.toml, F fleet and runs, C client). `hint` is the next step.
    `exit_code` is what supctl ends with (the table in protocol/exit_code.py).
    """

    code = "F000"
    hint = ""
    exit_code: int = ExitCode.FAILED
    problems: tuple["Problem", ...] = ()  # of a file


KeyPath = tuple[str | int, ...]
"""Of a value below the top of a file: ("stop", "grace"), ("run", "args", 0)."""


class About(NamedTuple):
    """What a problem is about: a value of a file by the path of its key, or the key itself."""

    path: KeyPath
    is_key: bool = False
    within: tuple[int, int] | None = None  # only these characters of a string: from, to
    span: tuple[int, int] | None = None  # instead of a key, characters of the text: from, to


class Place(NamedTuple):
    """Where something stands."""

    file: str  # as the user named it, or the option of the command line
    line: int | None  # from 1; None on the command line
    column: int  # characters, from 1
    length: int  # characters, of its first line


class Problem:
    """One thing that is wrong with a file: key path, offending value, what is wrong, how to mend it.

    `other` is a second part of the file that has to do with it, and its label there; `note` says more. `place` and
    `snippet`, the lines below the message, are filled in by protocol/snippets.py.
    """

    __slots__ = ("about", "code", "hint", "is_warning", "key", "message", "note", "other", "place", "snippet", "value")

    def __init__(
        self,
        code: str,
        key: str,
        value: str,
        message: str,
        hint: str,
        *,
        about: About | None = None,
        other: tuple[About, str] | None = None,
        note: str = "",
        is_warning: bool = False,
        place: Place | None = None,
    ) -> None:
        self.code = code
        self.key = key
        self.value = value
        self.message = message
        self.hint = hint
        self.about = about
        self.other = other
        self.note = note
        self.is_warning = is_warning
        self.place = place
        self.snippet = ""

    def __str__(self) -> str:
        shown = f" (it is {self.value})" if self.value and self.place is None else ""
        level = "warning" if self.is_warning else "error"
        return f"{level}[{self.code}]: {self.message}{shown}\n{self.snippet or f'  = {self.hint}'}"

    def __repr__(self) -> str:
        return f"Problem({self.code!r}, {self.key!r}, {self.value!r}, {self.message!r}, {self.hint!r})"


def _errors(count: int) -> str:
    if count > MAX_PROBLEMS:  # the last one only says so
        return f"more than {MAX_PROBLEMS} errors"
    return f"{count} error{'s' if count != 1 else ''}"


class FileInvalid(SupdError):
    """A configuration file with all its problems."""

    exit_code = ExitCode.INVALID
    mend: str  # the hint, with the {file}'s name for a shell

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        from shlex import quote  # only where something is wrong

        self.source = source
        self.problems = tuple(problems)
        of_options = sum(p.place is not None and p.place.line is None for p in self.problems)
        of_file = len(self.problems) - of_options
        counts = [(source, of_file), ("command line", of_options)]
        told = "; ".join(f"{where}: {_errors(count)}" for where, count in counts if count)
        self.hint = self.mend.format(file=quote(source)) if of_file else "mend the command line"
        body = "\n\n".join(str(p) for p in self.problems)
        explain = f"supctl help {self.problems[-1].code} explains a code."
        super().__init__(f"{body}\n\n{told}.  {explain}")


class JobInvalid(FileInvalid):
    """job.toml has problems."""

    code = "J000"
    mend = "mend the file and check it with `supctl validate {file}`"


class ConfigInvalid(FileInvalid):
    """supd.toml has problems."""

    code = "S000"
    mend = "mend the file; conf/supd.toml lists every key"


class Refused(SupdError):
    """A request that is understood and not carried out."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str = "",
        exit_code: int = ExitCode.FAILED,
        problems: tuple[Problem, ...] = (),
    ) -> None:
        self.code = code
        self.hint = hint
        self.exit_code = exit_code
        self.problems = problems
        super().__init__(message)


class ProtocolError(Exception):
    """Base of what can go wrong between two processes that speak our protocol."""


class LocalProtocolError(ProtocolError):
    """We were about to send something the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """The other side sent something the protocol forbids; its connection ends."""


class InvalidTransition(AssertionError):
    """A machine was handed an event that cannot happen in its state: our bug, never caught."""
