"""Checks of single values in job.toml and supd.toml, and the durations that supctl's flags take too.

Each gives the value in the form the structs want; what it gives for a value it has objected to is never used.
"""

import re
from collections.abc import Iterable

from protocol.job import LABEL_MAX_CHARS, LABELS_MAX
from protocol.tables import MAX_SHOWN_CHARS, Check, Kind, Spot, accepts, did_you_mean, key_text, quoted, shown

MAX_DURATION_S = 365 * 86400.0
MAX_INT = 2**63 - 1  # the most that a message can carry, and what the kernel takes for a limit

# --- durations ---------------------------------------------------------------------------------------------------

_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
_DURATION = re.compile(
    rf"(?:(?P<d>{_NUMBER})d)?(?:(?P<h>{_NUMBER})h)?(?:(?P<m>{_NUMBER})m(?!s))?"
    rf"(?:(?P<s>{_NUMBER})s)?(?:(?P<ms>{_NUMBER})ms)?"
)
_DURATION_FORM = f"^{re.sub('[?]P<[a-z]+>', '?:', _DURATION.pattern)}$"  # JSON Schema knows no names of groups
_DURATION_SCHEMA = {"type": "string", "minLength": 1, "pattern": _DURATION_FORM}
_DURATION_HINT = 'write a duration like "90s", "1h30m" or "500ms" (units d, h, m, s, ms, the largest first)'
_LONG_UNITS = (
    (re.compile("milliseconds?|millis|msecs?"), "ms"),
    (re.compile("seconds?|secs?"), "s"),
    (re.compile("minutes?|mins?"), "m"),
    (re.compile("hours?|hrs?"), "h"),
    (re.compile("days?"), "d"),
)
_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}


def parse_duration_s(text: str) -> float:
    """Seconds of a duration like "90s", "1h30m", "500ms" or "1.5s": units d, h, m, s and ms, the largest first.

    From 0 to MAX_DURATION_S (a year). Raises ValueError, whose text says how to write it.
    """
    match = _DURATION.fullmatch(text)
    if not text or not match:
        if re.fullmatch(_NUMBER, text):
            raise ValueError(f'a duration needs a unit: write "{text}s"')
        near = _near_duration(text)
        raise ValueError(f'write "{near}"' if near else _DURATION_HINT)
    duration_s = sum(float(number) * _UNIT_MS[unit] for unit, number in match.groupdict(default="0").items()) / 1000
    if duration_s > MAX_DURATION_S:
        raise ValueError('a duration is at most a year: write "365d" or less')
    return duration_s


def _near_duration(text: str) -> str:
    """The duration that "30sec", "2 Min" or "1h 30m" means; "" where it is none."""
    near = re.sub("[ ,]", "", text[:MAX_SHOWN_CHARS].lower())
    for words, unit in _LONG_UNITS:
        near = words.sub(unit, near)
    return near if _DURATION.fullmatch(near) else ""


@accepts(_DURATION_SCHEMA)
def duration(at: Spot, value: object) -> object:
    """A duration as seconds."""
    return _duration(at, value)


def _duration(at: Spot, value: object, or_word: str = "") -> float | None:
    """`or_word` is what else can be written there, for the hints."""
    if isinstance(value, str):
        try:
            return parse_duration_s(value)
        except ValueError as exc:
            hint = str(exc)
            at.wrong(
                Kind.DURATION,
                value,
                "cannot be read as a duration",
                f"{hint}{or_word}" if hint == _DURATION_HINT else hint,
            )
    elif isinstance(value, int | float) and not isinstance(value, bool):
        in_minutes = f' or "{value // 60}m"' if isinstance(value, int) and value >= 60 and value % 60 == 0 else ""
        hint = f'write "{value}s"{in_minutes}' if 0 <= value <= MAX_DURATION_S else 'write it like "300s" or "5m"'
        at.wrong(Kind.DURATION, value, "needs a unit", hint)
    else:
        at.wrong_type("a string", value, f'write it like "300s" or "5m"{or_word}')
    return None


@accepts({"anyOf": [{"const": "off"}, _DURATION_SCHEMA]})
def duration_or_off(at: Spot, value: object) -> object:
    """A duration as seconds, or None for "off"."""
    return None if value == "off" else _duration(at, value, ', or "off"')


@accepts(duration_or_off.json_schema)
def limit(at: Spot, value: object) -> object:
    """A duration over 0 as seconds, or None for "off"."""
    limit_s = duration_or_off(at, value)
    if limit_s == 0:
        at.wrong(Kind.RANGE, value, "would pass at once", 'write "off" for no limit')
    return limit_s


@accepts(duration.json_schema)
def patience(at: Spot, value: object) -> object:
    """A duration over 0 as seconds, for what has to have some time."""
    patience_s = _duration(at, value)
    if patience_s == 0:
        at.wrong(Kind.RANGE, value, "would pass at once", 'write how long it may take, as in "10m"')
    return patience_s


@accepts({"type": "boolean"})
def boolean(at: Spot, value: object) -> object:
    """true or false."""
    if not isinstance(value, bool):
        at.wrong_type("a boolean", value, "write true or false, without quotes")
    return value


# --- strings -----------------------------------------------------------------------------------------------------


@accepts({"type": "string"})
def string(at: Spot, value: object) -> object:
    """A string without NUL; it may be empty."""
    if not isinstance(value, str):
        is_plain = isinstance(value, bool | int | float)
        at.wrong_type("a string", value, f'put it in quotes: "{shown(value)}"' if is_plain else "write one string")
    elif "\0" in value:
        at.wrong(Kind.TEXT, value, "must not contain a NUL", "take the \\u0000 out")
    return value


@accepts({"type": "string", "minLength": 1})
def text(at: Spot, value: object) -> object:
    """A string without NUL that is not empty."""
    if value == "":
        at.wrong(Kind.TEXT, value, "must not be empty", "write something, or leave the key out for its default")
    return string(at, value)


def matching(pattern: str, noun: str, form: str) -> Check:
    """A check for strings that match all of `pattern`: those that are `noun`, which `form` explains."""
    compiled = re.compile(pattern)

    @accepts({"type": "string", "pattern": f"^(?:{pattern})$"})
    def check(at: Spot, value: object) -> object:
        if not isinstance(value, str):
            return string(at, value)
        if not compiled.fullmatch(value):
            at.wrong(Kind.TEXT, value, f"is not {noun}", form)
        return value

    return check


def choice(*words: str) -> Check:
    """A check for one of a few words."""

    @accepts({"enum": list(words)})
    def check(at: Spot, value: object) -> object:
        if not isinstance(value, str):
            at.wrong_type("a string", value, f"write {_choices(words)}")
        elif value not in words:
            hint = did_you_mean(value, words, '"{}"') or f"write {_choices(words)}"
            at.wrong(Kind.CHOICE, value, "is none of its choices", hint)
        return value

    return check


def _choices(words: Iterable[str]) -> str:
    return " or ".join(f'"{word}"' for word in words)


def not_yet(check: Check, word: str, hint: str) -> Check:
    """`check`, which knows one more word: one that later versions take."""

    @accepts(check.json_schema)
    def check_word(at: Spot, value: object) -> object:
        if value == word:
            at.wrong(Kind.NOT_YET, value, f'cannot be "{word}" in this version', hint)
            return value
        return check(at, value)

    return check_word


_LABEL_PART = {"type": "string", "maxLength": LABEL_MAX_CHARS}


@accepts(
    {
        "type": "object",
        "maxProperties": LABELS_MAX,
        "additionalProperties": _LABEL_PART,
        "propertyNames": {"minLength": 1, "maxLength": LABEL_MAX_CHARS},
    }
)
def labels(at: Spot, value: object) -> object:
    """What a node is called besides its name: strings by name."""
    if not isinstance(value, dict):
        name = at.parts[-1] if at.parts else "labels"
        at.wrong_type("a table", value, at.table_hint(f'write {name} = {{ rack = "b" }}'))
        return value
    if len(value) > LABELS_MAX:
        at.wrong(Kind.TEXT, value, f"has more than {LABELS_MAX} labels", "leave some out")
        return value
    for name, content in value.items():
        spot = at.below(name)
        if not name or not name.isprintable() or len(name) > LABEL_MAX_CHARS:
            what = f"`{key_text(name)}` cannot be the name of a label"
            spot.wrong_key(Kind.TEXT, what, f"write at most {LABEL_MAX_CHARS} characters that can be printed")
        if not isinstance(content, str):
            string(spot, content)
        elif not content.isprintable() or len(content) > LABEL_MAX_CHARS:
            hint = f"write at most {LABEL_MAX_CHARS} characters that can be printed"
            spot.wrong(Kind.TEXT, content, "cannot be the value of a label", hint)
    return value


# --- numbers and arrays ------------------------------------------------------------------------------------------


def integer(low: int, high: int, *words: str) -> Check:
    """A check for an integer in a range, both ends included, or one of a few words."""
    span = f"{low} or more" if high == MAX_INT else f"{low} to {high}" if low < high else f"{low}"
    or_word = "".join(f' or "{word}"' for word in words)
    wanted = f"write {span}{or_word}"
    numbers = {"type": "integer", "minimum": low, "maximum": high}

    @accepts({"anyOf": [numbers, {"enum": list(words)}]} if words else numbers)
    def check(at: Spot, value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            if value > high == MAX_INT:
                at.wrong(Kind.RANGE, value, "is out of range", f"write {low} to {high}{or_word}")
            elif not low <= value <= high:
                at.wrong(Kind.RANGE, value, "is out of range", wanted)
        elif isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
            at.wrong_type("an integer", value, f"write {value} without quotes")
        elif isinstance(value, float) and value.is_integer() and low <= value <= high:
            at.wrong_type("an integer", value, f"write {int(value)}")
        elif not isinstance(value, str) or not words:
            at.wrong_type("an integer", value, wanted)
        elif value not in words:
            at.wrong(Kind.CHOICE, value, "is none of its choices", did_you_mean(value, words, '"{}"') or wanted)
        return value

    return check


def array_of(check: Check, *, is_empty_allowed: bool = True) -> Check:
    """A check for an array whose items all pass `check`; it gives a tuple."""

    @accepts({"type": "array", "items": check.json_schema, "minItems": 0 if is_empty_allowed else 1})
    def check_array(at: Spot, value: object) -> object:
        if not isinstance(value, list):
            at.wrong_type("an array", value, f"write {at.spelled(_as_array(check, value))}")
            return ()
        if not value and not is_empty_allowed:
            at.wrong(Kind.TEXT, value, "must not be empty", "write at least one item, or leave the key out")
        return tuple(check(at.item(i), item) for i, item in enumerate(value))

    return check_array


def _as_array(check: Check, value: object) -> str:
    """The array that a value is meant to be which is none: a command line becomes its words, as a shell takes it."""
    if not isinstance(value, str):
        return f"[{shown(value) or '…'}]"
    if check.json_schema.get("type") != "string":
        return f"[{value}]" if re.fullmatch(r"[0-9, ]{1,60}", value) else "[…]"
    import shlex  # only where something is wrong

    try:
        words = shlex.split(value) or [value]
    except ValueError:  # an open quote
        words = [value]
    is_short = len(value) <= MAX_SHOWN_CHARS
    return f"[{', '.join(map(quoted, words))}]" if is_short else f"[{quoted(words[0])}, …], a string for each word"


@accepts({"const": 1})
def schema_version(at: Spot, value: object) -> object:
    """The version of the file's format: 1."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 1:
        at.wrong(Kind.NOT_YET, value, "is a format that this version cannot read", "install a newer supd, or write 1")
        return value
    return integer(1, 1)(at, value)
