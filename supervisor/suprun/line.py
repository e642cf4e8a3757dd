"""Reads a command line as torchrun's parser reads it: options, the script, and its arguments as they are.

An option is what stands before the script; nothing behind it is looked at. The value of an option is the last one
given, else that of its PET_ variable, else its default. An option's name may be cut where it stays clear which one is
meant, as in argparse.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from supervisor.suprun.options import BY_SPELLING, OPTIONS, Flags, Form, Option

WORDS_MAX = 10_000
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")

BAD_LINE, NO_SCRIPT, CONTRADICTION, BAD_BACKEND, BAD_ENDPOINT = "C020", "C021", "C022", "C023", "C024"
NOT_UTF8 = "C013"
SEVERAL_TASKS, INLINE_CODE, COMMENT, BAD_STEP, NO_LAUNCH = "C025", "C026", "C027", "C028", "C029"

Value = str | int | float | bool | list[str] | None


class Line(NamedTuple):
    """A command line of suprun, read."""

    flags: Flags
    script: str  # "": there is none, and none is needed
    args: tuple[str, ...]
    origins: dict[str, str]  # field -> who gave it: the option as it was written, or the name of a variable
    words: tuple[str, ...]  # as they were given

    def is_given(self, *fields: str) -> bool:
        """Whether one of these options was given, by the line or by a variable."""
        return any(field in self.origins for field in fields)

    def origin(self, field: str) -> str:
        """By what to call this option in a message."""
        return self.origins.get(field, OPTIONS[field].names[-1])


class Given(NamedTuple):
    """An option as it was found."""

    option: Option
    spelling: str
    value: str | None  # None: it takes none

    @property
    def words(self) -> list[str]:
        """As it can be written."""
        name = self.option.names[-1]
        return [name] if self.value is None else [f"{name}={self.value}"]


def refused(code: str, message: str, hint: str) -> Refused:
    """What suprun says of a command line."""
    return Refused(code, message, hint=hint, exit_code=ExitCode.USAGE)


def suprun_line(words: Iterable[str]) -> str:
    """A line that can be typed."""
    return " ".join(["suprun", *map(_typed, words)])


def read_line(words: Sequence[str], environ: Mapping[str, str]) -> Line:
    """The line's options with the PET_ variables of `environ`, script and arguments. Raises Refused."""
    if len(words) > WORDS_MAX:
        raise refused(BAD_LINE, f"the command line has more than {WORDS_MAX} words", "pass a file to the script")
    given, rest = split_line(words)
    values: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for option in OPTIONS.values():
        if option.variable in environ:
            values[option.dest] = _converted(option, option.variable, environ[option.variable])
            origins[option.dest] = option.variable
    for found in given:
        values[found.option.dest] = True if found.value is None else _of_line(found.option, found.spelling, found.value)
        origins[found.option.dest] = found.spelling
    flags = Flags(**values)  # type: ignore[arg-type]  # each by its option's form: a test compares the types
    if flags.help or flags.version:
        return Line(flags, "", (), origins, tuple(words))
    if not rest:
        raise refused(NO_SCRIPT, "the line names no script", suprun_line([*words, "train.py"]))
    script, args = rest[0], rest[1:]
    _check_script(script, words[: len(words) - len(rest)], values)
    return Line(flags, script, tuple(args), origins, tuple(words))


# --- words -------------------------------------------------------------------------------------------------------


def split_line(words: Sequence[str]) -> tuple[list[Given], Sequence[str]]:
    """The options of a line, and the script with its arguments. Raises Refused."""
    given: list[Given] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return given, words[at + 1 :]
        if not _is_option(word):
            behind = at + 2 if at + 1 < len(words) and words[at + 1] == "--" else at + 1  # argparse drops one there
            return given, [word, *words[behind:]]
        found, is_open = _options_of(words, at)
        at += 1
        if is_open:
            last = found.pop()
            if at == len(words) or words[at] == "--" or _is_option(words[at]):
                message = f"{last.spelling} has no value: it takes {last.option.value}"
                raise refused(BAD_LINE, message, f"{last.spelling} {_example(last.option)}")
            found.append(last._replace(value=words[at]))
            at += 1
        given += found
    return given, []


def _is_option(word: str) -> bool:
    """Whether a word is one for argparse; a number below 0 is none, nor is a word with a blank that names no option."""
    if len(word) < 2 or word[0] != "-":
        return False
    if word in BY_SPELLING or _near(word):
        return True
    return not _NEGATIVE.fullmatch(word) and " " not in word


def _near(word: str) -> list[str]:
    """The spellings of which a word's name is the beginning, or the short options that it begins with."""
    name, _, _ = word.partition("=")
    if word.startswith("--"):
        return [name] if name in BY_SPELLING else [s for s in BY_SPELLING if s.startswith(name)]
    return [word[:2]] if word[:2] in BY_SPELLING else []


def _options_of(words: Sequence[str], at: int) -> tuple[list[Given], bool]:
    """What one word gives, and whether the next word is the value of the last one."""
    word = words[at]
    near = _near(word)
    options = {BY_SPELLING[spelling].dest for spelling in near}
    if not options:
        _unknown(words, at)
    if len(options) > 1:
        message = f"{word.partition('=')[0]} may be {' or '.join(s for s in near if '_' not in s)}"
        raise refused(BAD_LINE, message, "write the whole name")
    option = BY_SPELLING[near[0]]
    if not word.startswith("--"):
        return _shorts_of(words, at)
    name, equals, value = word.partition("=")
    if option.form is Form.SWITCH:
        if equals:
            raise refused(BAD_LINE, f"{name} takes no value, and has {value!r}", name)
        return [Given(option, near[0], None)], False
    return [Given(option, near[0], value if equals else None)], not equals


def _shorts_of(words: Sequence[str], at: int) -> tuple[list[Given], bool]:
    """Of `-r3`, `-r=3`, `-mr3`: short options, of which the last may have a value behind it."""
    given: list[Given] = []
    for column, letter in enumerate(words[at][1:], 2):
        spelling, behind = f"-{letter}", words[at][column:]
        option = BY_SPELLING.get(spelling) or _unknown(words, at)
        if option.form is not Form.SWITCH:
            return [*given, Given(option, spelling, behind.removeprefix("=") if behind else None)], not behind
        given.append(Given(option, spelling, None))
    return given, False


def _unknown(words: Sequence[str], at: int) -> NoReturn:
    """Raises Refused."""
    word = words[at]
    if word == "-c":
        code = words[at + 1] if at + 1 < len(words) else "CODE"
        line = suprun_line([*words[:at], "--no-python", "python", "-c", code, *words[at + 2 :]])
        raise refused(INLINE_CODE, "-c is an option of python, and none of torchrun or suprun", line)
    from protocol.tables import did_you_mean  # only where something is wrong

    name = word.partition("=")[0]
    known = (s.removeprefix("--") for s in BY_SPELLING if s.startswith("--") and "_" not in s)
    near = did_you_mean(name.removeprefix("--").replace("_", "-"), known, "`--{}`") if name.startswith("--") else ""
    hint = "options of the script stand behind it: suprun [OPTIONS] SCRIPT [ARG …]"
    raise refused(BAD_LINE, f"suprun has no option {_typed(name)}" + (f"; {near}" if near else ""), hint)


def _check_script(script: str, options: Sequence[str], values: Mapping[str, Value]) -> None:
    """A script that is a blank or a `#` is what a comment behind a backslash leaves of a line."""
    if script.strip() and not script.startswith("#"):
        return
    if not script:
        message = "the script is empty, as a variable of the shell is that is not set"
        raise refused(NO_SCRIPT, message, suprun_line([*options, "train.py"]))
    what = "a backslash with a blank behind it does not join lines"
    message = f"the script would be {script!r}: {what}, so the line ends there, and the next one is another command"
    rest = []
    if ":" in str(values.get("nnodes", "")) and "rdzv_endpoint" not in values:
        rest = ["--rdzv-backend=c10d", "--rdzv-endpoint=HOST:PORT"]
    hint = f"write no comment there: {suprun_line([*options, *rest, 'train.py'])}"
    raise refused(COMMENT, message, hint)


def _typed(word: str) -> str:
    """A word as a shell takes it, on one line."""
    if "\n" not in word and "\r" not in word:
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"$'{escaped}'"


# --- values ------------------------------------------------------------------------------------------------------


def _of_line(option: Option, spelling: str, text: str) -> Value:
    """A value that the line gives. A default is none of the choices' business, as in argparse."""
    if option.choices and text not in option.choices:
        message = f"{spelling} is one of {', '.join(option.choices)}, not {text!r}"
        raise refused(BAD_LINE, message, f"{spelling} {option.choices[0]}")
    return _converted(option, spelling, text)


def _converted(option: Option, origin: str, text: str) -> Value:
    """The value in the form that its option has. Raises Refused."""
    try:
        match option.form:
            case Form.TEXT:
                return text
            case Form.WORDS:
                return comma_separated(text)
            case Form.WHOLE:
                return int(text)
            case Form.NUMBER:
                return float(text)
            case Form.SWITCH:
                return bool(int(text))
    except ValueError:
        is_switch = option.form is Form.SWITCH
        wanted = "1 or 0" if is_switch else option.form.value
        example = "1" if is_switch else _example(option)
        mend = f"{origin} {example}" if origin.startswith("-") else f"export {origin}={example}, or unset it"
        raise refused(BAD_LINE, f"{origin} is {wanted}, not {text!r}", mend) from None


def comma_separated(text: str) -> list[str]:
    """Words with commas between; two commas are one in a word."""
    words = [""]
    for part in re.findall(",,|,|[^,]+", text):
        if part == ",":
            words.append("")
        else:
            words[-1] += "," if part == ",," else part
    return words


def _example(option: Option) -> str:
    default = getattr(Flags(), option.dest)
    return option.choices[0] if option.choices else "VALUE" if default in (None, "", []) else str(default)
