"""Every exception this project raises on purpose; imports nothing of it.

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


class SupdError(Exception):
    """Base of the errors an operator can act on; printed without a traceback.

    `code` is a letter and three digits and stays stable: docs and scripts refer to it
    (J job file, S supd.toml, F fleet and runs, C client). `hint` is the next step.
    `exit_code` is what supctl ends with (the table in supervisor/cli/exit_code.py).
    """

    code = "F000"
    hint = ""
    exit_code = 1


class Problem:
    """One thing that is wrong with a file: key path, offending value, what is wrong, how to mend it."""

    __slots__ = ("code", "hint", "key", "message", "value")

    def __init__(self, code: str, key: str, value: str, message: str, hint: str) -> None:
        self.code = code
        self.key = key
        self.value = value
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        shown = f" (it is {self.value})" if self.value else ""
        return f"error[{self.code}]: {self.message}{shown}\n  = {self.hint}"

    def __repr__(self) -> str:
        return f"Problem({self.code!r}, {self.key!r}, {self.value!r}, {self.message!r}, {self.hint!r})"


class FileInvalid(SupdError):
    """A configuration file with all its problems."""

    exit_code = 78

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        count = len(self.problems)
        body = "\n\n".join(str(p) for p in self.problems)
        super().__init__(f"{body}\n\n{source}: {count} error{'s' if count != 1 else ''}")


class JobInvalid(FileInvalid):
    """job.toml has problems."""

    code = "J000"
    hint = "mend the file and check it with `supctl validate FILE`"


class ConfigInvalid(FileInvalid):
    """supd.toml has problems."""

    code = "S000"
    hint = "mend the file; conf/supd.toml lists every key"


class Refused(SupdError):
    """A request that is understood and not carried out."""

    def __init__(self, code: str, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        self.code = code
        self.hint = hint
        self.exit_code = exit_code
        super().__init__(message)


class ProtocolError(Exception):
    """Base of what can go wrong between two processes that speak our protocol."""


class LocalProtocolError(ProtocolError):
    """We were about to send something the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """The other side sent something the protocol forbids; its connection ends."""


class InvalidTransition(AssertionError):
    """A machine was handed an event that cannot happen in its state: our bug, never caught."""
