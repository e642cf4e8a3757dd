"""Checks of single values that only a job.toml has (its keys: job_schema.py)."""

import math
import re
import signal

from protocol.checks import (
    MAX_INT,
    array_of,
    duration,
    integer,
    limit,
    matching,
    string,
    text,
)
from protocol.errors import About
from protocol.job import LIMITS, PHASE_BYTES_MAX, RESERVED_ENV, RESERVED_ENV_PREFIX, HangTable, is_reserved
from protocol.selector import FORM, is_selector
from protocol.tables import (
    Check,
    Kind,
    Spot,
    accepts,
    did_you_mean,
    key_text,
    quoted,
    shown,
    type_text,
)

PATTERN_CHARS_MAX = 1000
PATTERN_REPEATS_MAX = 10_000
"""Of a `log_pattern`: a compiled pattern holds a{1000} a thousand times, and the runner holds the pattern."""


_SIGNAL_FORM = "(?:[A-Za-z][A-Za-z0-9+-]*)"
_USUAL_SIGNALS = ["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP"]


def signal_name(refused: dict[str, str], *, is_empty_allowed: bool = False) -> Check:
    """A check for a signal's name, with SIG or without; `refused` has the reasons why some cannot be used."""

    @accepts(
        {"type": "string", "pattern": f"^{_SIGNAL_FORM}{'?' if is_empty_allowed else ''}$", "examples": _USUAL_SIGNALS}
    )
    def check(at: Spot, value: object) -> object:
        if not isinstance(value, str):
            at.wrong_type("a string", value, 'write a signal\'s name, as in "SIGTERM"')
            return value
        if not value and is_empty_allowed:
            return value
        short = value.upper().removeprefix("SIG")
        name = f"SIG{short}"
        if name in refused:
            at.wrong(Kind.SIGNAL, value, f"cannot be {name}", refused[name])
        elif name not in signal.Signals.__members__:
            known = [member.removeprefix("SIG") for member in signal.Signals.__members__]
            hint = did_you_mean(short, known, '"SIG{}"') or 'write a signal\'s name, as in "SIGTERM"'
            at.wrong(Kind.SIGNAL, value, "is not a signal", hint)
        return name

    return check


NOTICE_SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT")
"""That schedulers send, and that supd and a runner listen to."""

_any_signal = signal_name({})


@accepts(_any_signal.json_schema)
def notice_signal(at: Spot, value: object) -> object:
    """The name of a signal that can be a notice of preemption."""
    name = _any_signal(at, value)
    if isinstance(name, str) and name in signal.Signals.__members__ and name not in NOTICE_SIGNALS:
        at.wrong(Kind.SIGNAL, value, "cannot be a notice", f"write {', '.join(NOTICE_SIGNALS[:-1])} or SIGINT")
    return name


PAUSE_MIN_S = 0.1


@accepts(duration.json_schema)
def pause(at: Spot, value: object) -> object:
    """Seconds between two runs of a command: PAUSE_MIN_S or more."""
    pause_s = duration(at, value)
    if isinstance(pause_s, float) and pause_s < PAUSE_MIN_S:
        at.wrong(Kind.RANGE, value, "is too often", 'write "100ms" or more')
    return pause_s


_VARIABLE_SCHEMA = {
    "pattern": "^[^=]+$",
    "not": {"anyOf": [{"enum": sorted(RESERVED_ENV)}, {"pattern": f"^{RESERVED_ENV_PREFIX}"}]},
}


@accepts({"type": "object", "additionalProperties": {"type": "string"}, "propertyNames": _VARIABLE_SCHEMA})
def env(at: Spot, value: object) -> object:
    """Variables of the ranks: strings by name, none of which supd sets itself."""
    if not isinstance(value, dict):
        hint = at.table_hint('write env = { NAME = "value" }, or [run.env] with a line for each')
        at.wrong_key(Kind.TYPE, f"`{at.path}` must be a table, not {type_text(value)}", hint)
        return value
    for name, content in value.items():
        _check_variable(at.below(name), name, content)
    return value


def _check_variable(at: Spot, name: str, content: object) -> None:
    word = key_text(name)
    if not name or "=" in name or "\0" in name:
        at.wrong_key(Kind.ENV, f"`{word}` cannot name a variable", "a name has no = and no NUL")
    elif is_reserved(name):
        at.wrong_key(Kind.ENV, f"supd sets `{word}` itself for every rank", "leave it out")
    # What a variable holds may be a secret: it is not shown.
    if not isinstance(content, str):
        hint = "write a string"
        if isinstance(content, bool | int | float):
            hint = f'put the value in quotes: {word} = "…"'
        at.wrong_key(Kind.TYPE, f"`{at.path}` must be a string, not {type_text(content)}", hint)
    elif "\0" in content:
        at.wrong_key(Kind.TEXT, f"`{at.path}` must not contain a NUL", "take the \\u0000 out")


@accepts({"anyOf": [{"enum": ["submitter", "daemon", "none"]}, array_of(text).json_schema]})
def inherit_env(at: Spot, value: object) -> object:
    """Whose environment a rank starts from, or patterns over the submitter's."""
    if isinstance(value, list):
        return array_of(text)(at, value)
    if isinstance(value, str) and value not in ("submitter", "daemon", "none"):
        hint = did_you_mean(value, ("submitter", "daemon", "none"), '"{}"')
        if not hint:
            words = "" if re.search("[*?[]", value) else '"submitter", "daemon" or "none", or '
            hint = f"write {words}{at.spelled(f'[{quoted(value)}]')} for a pattern"
        at.wrong(Kind.CHOICE, value, "is none of its choices", hint)
    elif not isinstance(value, str):
        at.wrong_type("a string or an array", value, 'write "submitter", "daemon", "none", or patterns: ["HF_*"]')
    return value


@accepts({"type": "string", "minLength": 1, "not": {"anyOf": [{"pattern": "/"}, {"pattern": r"\.py$"}]}})
def module(at: Spot, value: object) -> object:
    """A module as `python -m` takes it."""
    if isinstance(value, str) and ("/" in value or value.endswith(".py")):
        name = value.removesuffix(".py").strip("./").replace("/", ".")
        hint = f"write script = {quoted(value)}" + (f", or module = {quoted(name)}" if name else "")
        at.wrong(Kind.TEXT, value, "is the name of a file", hint)
        return value
    return text(at, value)


_COMMAND = array_of(string, is_empty_allowed=False)


@accepts(_COMMAND.json_schema)
def command(at: Spot, value: object) -> object:
    """A command, word by word."""
    if isinstance(value, list) and value[:1] == [""]:
        at.item(0).wrong(Kind.TEXT, "", "must not be empty", "write the program that is to run")
    return _COMMAND(at, value)


_LIMIT = integer(0, MAX_INT, "unlimited")


@accepts({"type": "object", "additionalProperties": False, "properties": dict.fromkeys(LIMITS, _LIMIT.json_schema)})
def limits(at: Spot, value: object) -> object:
    """Soft limits by name; "unlimited" becomes -1."""
    if not isinstance(value, dict):
        at.wrong_type("a table", value, at.table_hint("write limits = { nofile = 65536 }"))
        return value
    for name in value.keys() - set(LIMITS):
        spot = at.below(name)
        hint = did_you_mean(name, LIMITS) or f"there are {', '.join(LIMITS)}"
        spot.wrong_key(Kind.UNKNOWN_KEY, f"unknown limit `{key_text(name)}`", hint)
    sound = {name: _LIMIT(at.below(name), value[name]) for name in LIMITS if name in value}
    return {name: -1 if limit == "unlimited" else limit for name, limit in sound.items()}


_PATTERN_SCHEMA = {"type": "string", "maxLength": PATTERN_CHARS_MAX, "pattern": r"^$|\(\?P<step>"}


@accepts(_PATTERN_SCHEMA)
def log_pattern(at: Spot, value: object) -> object:
    """A regular expression that finds progress."""
    return _pattern(at, value, "without it supd can't measure progress, so [hang] would be blind")


@accepts(_PATTERN_SCHEMA)
def checkpoint_pattern(at: Spot, value: object) -> object:
    """A regular expression that finds saves."""
    return _pattern(at, value, "without it nobody knows what was saved")


def _pattern(at: Spot, value: object, note: str) -> object:
    """A regular expression with a group `step` that costs little to compile, or ""; `note` says why it needs one."""
    if not isinstance(value, str):
        return string(at, value)
    repeats = math.prod(max(int(least), 1) for least in re.findall(r"\{([0-9]{1,9})", value))
    if len(value) > PATTERN_CHARS_MAX or repeats > PATTERN_REPEATS_MAX:
        limits = f"{PATTERN_CHARS_MAX} characters, and counted repeats that multiply to {PATTERN_REPEATS_MAX}"
        at.wrong(Kind.PATTERN, value, "is too large a regular expression", f"write at most {limits}")
        return value
    try:
        groups = re.compile(value).groupindex
    except re.error as exc:
        within = None if exc.pos is None else (exc.pos, min(exc.pos + 1, len(value)))
        at.wrong(Kind.PATTERN, value, f"is not a regular expression: {exc.msg}", "see Python's `re`", within=within)
    except (OverflowError, RecursionError) as exc:
        at.wrong(Kind.PATTERN, value, f"is not a regular expression: {exc}", "see Python's `re`")
    else:
        if value and "step" not in groups:
            at.found.add(
                Kind.PATTERN,
                at.path,
                shown(value),
                f"`{at.path}` has no group named `step`",
                r"name it: (?P<step>\d+)",
                about=About(at.parts, within=_first_group(value)),
                note=note,
            )
    return value


def _first_group(pattern: str) -> tuple[int, int] | None:
    """Where the first group without a name stands: it is mostly the step."""
    opened = depth = 0
    for token in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]", pattern, re.DOTALL):
        match token[0]:
            case "(" if depth or pattern[token.end() : token.end() + 1] != "?":
                opened = opened if depth else token.start()
                depth += 1
            case ")" if depth == 1:
                return opened, token.end()
            case ")" if depth:
                depth -= 1
    return None


@accepts({"type": "string", "pattern": "^[!0-9,all-]+$"})
def rank_selector(at: Spot, value: object) -> object:
    """Ranks as protocol/selector.py has them."""
    if isinstance(value, str) and not is_selector(value):
        at.wrong(Kind.TEXT, value, "chooses no ranks", f"write ranks {FORM}")
    return string(at, value)


@accepts({"type": "object", "additionalProperties": limit.json_schema})
def phases(at: Spot, value: object) -> object:
    """Limits of phases in seconds, the default ones included; None for "off"."""
    if not isinstance(value, dict):
        at.wrong_type("a table", value, at.table_hint('write phases = { checkpoint = "20m" }'))
        return {}
    for name in value:
        if not name or not name.isprintable() or len(name.encode()) > PHASE_BYTES_MAX:
            what = f"`{key_text(name)}` cannot be the name of a phase"
            at.below(name).wrong_key(Kind.TEXT, what, f"write at most {PHASE_BYTES_MAX} bytes that can be printed")
    given = {name: limit(at.below(name), content) for name, content in value.items()}
    return {**HangTable().phases, **given}


exit_codes = array_of(integer(1, 255))  # 0 is success and never a failure to decide about
job_name = matching("[a-z0-9][a-z0-9-]{0,62}", "a job name", "write 1 to 63 of a-z, 0-9 and -, a letter or digit first")
CANNOT_BE_CAUGHT = "it cannot be caught, so nothing could be saved; SIGUSR1 is usual"
WOULD_ONLY_SUSPEND = "it would only suspend the ranks, and they would never end"
