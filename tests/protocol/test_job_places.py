"""job.toml: every error stands where the text is that it is about, and what may not be meant is a warning."""

import re
import tomllib
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import MAX_PROBLEMS, JobInvalid, Place, Problem
from protocol.job_file import read_job
from protocol.spans import Extent, Mark, marks_of

LEAST = 'name = "a"\nrun.script = "train.py"\n'


def invalid(text: str | bytes) -> JobInvalid:
    """What is said of a file that has problems."""
    with pytest.raises(JobInvalid) as caught:
        read_job(text.encode() if isinstance(text, str) else text, "llama.toml")
    return caught.value


def test_errors_look_as_the_design_shows_them() -> None:
    text = r"""name = "llama"

[run]
script  = "train.py"
command = ["python", "train.py"]

[topology]
nnodes = "8:4"
nproc_pernode = 8










[stop]
grace = 300



[progress]

log_pattern = 'iteration\s+(\d+)/'
"""
    assert (
        str(invalid(text))
        == r"""error[J301]: `run.script` and `run.command` exclude each other
  --> llama.toml:5:1
   |
 4 | script  = "train.py"
   | ------ first given here
 5 | command = ["python", "train.py"]
   | ^^^^^^^ keep one: `script` runs under python, `command` is used as is

error[J210]: minimum is above maximum in `topology.nnodes`
  --> llama.toml:8:10
   |
 8 | nnodes = "8:4"
   |          ^^^^^ the form is "MIN:MAX"; did you mean "4:8"?

error[J101]: unknown key `nproc_pernode` in [topology]
  --> llama.toml:9:1
   |
 9 | nproc_pernode = 8
   | ^^^^^^^^^^^^^ did you mean `nproc_per_node`?

error[J204]: `stop.grace` needs a unit
  --> llama.toml:21:9
   |
21 | grace = 300
   |         ^^^ write "300s" or "5m"

error[J412]: `progress.log_pattern` has no group named `step`
  --> llama.toml:27:28
   |
27 | log_pattern = 'iteration\s+(\d+)/'
   |                            ^^^^^ name it: (?P<step>\d+)
   = without it supd can't measure progress, so [hang] would be blind

llama.toml: 5 errors.  supctl help J412 explains a code."""
    )


def test_a_syntax_error_is_shown_where_the_parser_stopped() -> None:
    assert (
        str(invalid('name = "a"\n[run]\nscript = train.py\n'))
        == """error[J001]: not TOML: Invalid value
  --> llama.toml:3:10
   |
 3 | script = train.py
   |          ^ put text in quotes

llama.toml: 1 error.  supctl help J001 explains a code."""
    )


def test_a_key_given_twice_is_shown_with_the_first_one() -> None:
    (problem,) = invalid(LEAST + '[stop]\ngrace = "1s"\nscope = "rank"\ngrace = "2s"').problems
    assert problem.snippet.split("\n")[2:] == [
        ' 4 | grace = "1s"',
        "   | ----- first given here",
        "...",
        ' 6 | grace = "2s"',
        "   |             ^ a key or table is given only once: keep one",
    ]


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"\xef\xbb\xbfnam = 1\r\n[run]\r\nscript = 'x'", (1, 1, 3)),
        (b"# caf\xc3\xa9\r\n\r\nx\xe9 = 1", (3, 2, 1)),
        (b"name = \n", (1, 8, 1)),
        (b"name = [\n 1,\n\n\n", (2, 4, 1)),
        (b"name = '''\nx", (2, 2, 1)),
    ],
)
def test_places_count_lines_and_characters_from_one_whatever_the_bytes_are(
    data: bytes, place: tuple[int, int, int]
) -> None:
    assert invalid(data).problems[0].place == Place("llama.toml", *place)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"# nothing\n",
        b"x = 1\n" * 200_000,
        b"x" * 10_000_000,
        bytes(range(256)),
        'name = "a"'.encode("utf-16"),
        b"x = " + b"[" * 100_000,
        b"x = " + b"1" * 5000,
        b"a." * 1000 + b"b = 1",
    ],
    ids=range(9),
)
def test_a_file_that_is_no_job_file_at_all_is_one_error_without_a_place(data: bytes) -> None:
    (problem,) = invalid(data).problems
    assert problem.place is None
    assert problem.snippet == f"  --> llama.toml\n   = {problem.hint}"


def test_of_a_hopeless_file_the_first_hundred_problems_are_shown_each_in_its_place() -> None:
    problems = invalid("".join(f"'key {i}' = {i}\n" for i in range(20_000))).problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert [problem.place and problem.place.line for problem in problems] == [*range(1, MAX_PROBLEMS + 1), None]


def test_a_huge_key_and_a_huge_value_are_cut() -> None:
    text = str(invalid(f'{LEAST}{"k" * 100_000} = "{"v" * 100_000}"\nschema = "{"w" * 100_000}"'))
    assert max(map(len, text.splitlines())) < 400


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("'(a'", "(a"),
        (r"'x**'", "*"),
        (r"'\(no\) [(] (?:x) (\d+(a))'", r"(\d+(a))"),
        (r'"\\d (x)"', "(x)"),
        ("'no group'", "'no group'"),
        ("'''(x)'''", "'''(x)'''"),
    ],
)
def test_what_is_wrong_within_a_pattern_is_underlined_within_it(pattern: str, part: str) -> None:
    (problem,) = invalid(f"{LEAST}[progress]\nlog_pattern = {pattern}").problems
    assert problem.code == "J412"
    assert problem.place is not None
    line = f"log_pattern = {pattern}"
    assert line[problem.place.column - 1 :].startswith(part if part != "(a" else "(")


@pytest.mark.parametrize("value", ["1234", "true", '"1234\\u0000"', "[1234]", "1979-05-27"])
def test_what_a_variable_holds_is_never_shown(value: str) -> None:
    text = f"{LEAST}[run.env]\nTOKEN = {value}\nRANK = '1234'\n[topology]\nenv = '1234'\n"
    assert not re.search("1234|true|1979", str(invalid(text)))
    with pytest.raises(JobInvalid) as caught:
        read_job(LEAST.encode(), "a.toml", settings=[f"run.env.TOKEN={value}", "run.env.RANK=1234"])
    assert not re.search("1234|true|1979", str(caught.value))


@pytest.mark.parametrize(
    "written",
    [
        'environ = { TOKEN = "SECRET", B = "1" }',
        'environ.TOKEN = "SECRET"',
        'environ = "TOKEN=SECRET"',
        'environment = ["TOKEN=SECRET"]',
        'vars = { TOKEN = "SECRET" }',
        'vars = ["TOKEN=SECRET"]',
        'vars = [{ TOKEN = "SECRET" }]',
        'secret_env = { TOKEN = "SECRET" }',
        'secret_env.TOKEN = "SECRET"',
        'args = [{ TOKEN = "SECRET" }]',
    ],
)
@pytest.mark.parametrize("form", ["run.{}", "runs.{}", "stop.{}", "{}", "run.{}\nrun.{}", "run.{} x", "\n[run]\n{} x"])
def test_what_a_variable_holds_is_not_shown_either_where_env_is_misspelt(written: str, form: str) -> None:
    text = 'name = 1\nrun.script = "train.py"\n' + form.format(written, written)
    assert "SECRET" not in str(invalid(text))


def test_what_an_option_gives_a_misspelt_variable_is_not_shown() -> None:
    for setting in ("run.environ.TOKEN=SECRET", 'run.vars={ TOKEN="SECRET" }', 'run.vars={ TOKEN="SECRET'):
        with pytest.raises(JobInvalid) as caught:
            read_job(LEAST.encode(), "a.toml", settings=[setting])
        assert "SECRET" not in str(caught.value)
        assert "SECRET" not in repr([problem.place for problem in caught.value.problems])


def test_other_values_are_shown_beside_it() -> None:
    text = str(invalid('name = "a"\n[run]\nscript = 5\npyton = 3\nargs = [7]\nlimits = { core = "x" }'))
    assert not [line for line in text.splitlines() if "***" in line]


# --- any one change ----------------------------------------------------------------------------------------------

VALID = r"""schema = 1
name = "llama"

[run]
script = "train.py"
args = ["--lr", '3e-4']
env = { NCCL_DEBUG = "INFO", "QUOTED KEY" = 'x' }
limits.nofile = 65536

[topology]
nproc_per_node = 8

[restart]
backoff = "5s"
backoff_max = "2m"
never_on_exit = [2,
  3]
always_on_exit = [33]

[stop]
signal = "SIGTERM" # asks
grace = "30s"

[progress]
source = "log"
log_pattern = 'step (?P<step>\d+)'

[hang]
action = "warn"

[hang.phases]
eval = "10m"
"""


class Change(NamedTuple):
    """A key or value that can be written otherwise."""

    part: Extent
    entry: Extent  # with the other half of it
    name: str


def changes_of(mark: Mark) -> Iterator[Change]:
    """Every key and every value of a text."""
    for name, below in mark.entries.items():
        key, value = below.key, below.value
        if value is None or VALID.startswith("\n[", value.start - 1):  # a table: only its name can be changed
            value = None
        entry = Extent((key or value or Extent(0, 0)).start, (value or key or Extent(0, 0)).end)
        for part in filter(None, (key, value)):
            yield Change(part, entry, str(name))
        yield from changes_of(below)


ROOT = marks_of(VALID, tomllib.loads(VALID))
assert ROOT is not None
CHANGES = sorted(set(changes_of(ROOT)))
KEYS = ["name", "run", "script", "module", "command", "args", "env", "stop", "grace", "backoff", "never_on_exit", "x-1"]
TEXTS = st.one_of(
    st.sampled_from([*KEYS, "phases", "eval", "source", "file", "'a b'", '""', "run.env.RANK", "a.b"]),
    st.sampled_from(
        ["1", "-1", "0", "true", "nan", '""', '"5m"', '"5"', '"auto"', "[]", "[3]", "[[]]", "{}", "{ a = 1 }"]
    ),
    st.sampled_from(
        ["1979-05-27", '"SIGKILL"', '"file"', "'(?P<step>x)(y)'", '"(x)"', "9" * 30, '"\\u0000"', "'''\nx'''"]
    ),
    st.text(max_size=6),
    st.text(st.sampled_from("a.=[]{}\"'#,\n"), max_size=5),
)


@settings(deadline=None, max_examples=400)  # the machine may be busy
@given(st.sampled_from(CHANGES), TEXTS)
def test_any_one_change_gives_no_error_or_one_at_that_place_or_names_it(change: Change, written: str) -> None:
    text = VALID[: change.part.start] + written + VALID[change.part.end :]
    try:
        read_job(text.encode(), "f.toml")
    except JobInvalid as exc:
        problems = exc.problems
    else:
        return
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        assert_stands_where_the_parser_stopped(problems, text, str(exc))
        return
    entry = Extent(change.entry.start, change.entry.end + len(text) - len(VALID))
    names = re.compile(rf"\b{re.escape(change.name)}\b|{re.escape(written)}")
    assert any(
        overlaps(problem.place, text, entry)
        or (problem.code in ("J101", "J202", "J301", "J302") and names.search(problem.message))
        for problem in problems
    ), "\n".join(map(str, problems))


def overlaps(place: Place | None, text: str, extent: Extent) -> bool:
    """Whether a place has a character of an extent."""
    if place is None or place.line is None:
        return False
    lines = text.replace("\r\n", "\n").split("\n")
    start = sum(len(line) + 1 for line in lines[: place.line - 1]) + place.column - 1
    return start <= extent.end and extent.start < start + place.length


def assert_stands_where_the_parser_stopped(problems: tuple[Problem, ...], text: str, message: str) -> None:
    (problem,) = problems
    text = text.replace("\r\n", "\n")
    if not problem.message.startswith("not TOML: "):
        return  # binary, or nested too deeply: without a place
    assert problem.place is not None
    if coordinates := re.search(r"at line (\d+), column (\d+)\)$", message):
        assert (problem.place.line, problem.place.column) == (int(coordinates[1]), int(coordinates[2]))
    else:
        end = text.rstrip(" \t\n")
        assert (problem.place.line, problem.place.column) == (end.count("\n") + 1, len(end) - end.rfind("\n"))


# --- warnings ----------------------------------------------------------------------------------------------------


def warnings(text: str, *changes: str) -> list[tuple[str, str, int | None]]:
    """Code, key and line of every warning of a sound file."""
    job = read_job((LEAST + text).encode(), "f.toml", settings=changes)
    assert all(str(warning).startswith(f"warning[{warning.code}]: ") for warning in job.warnings)
    return [(warning.code, warning.key, warning.place and warning.place.line) for warning in job.warnings]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[progress]\nsource = "none"\n[hang]\naction = "restart"', [("J501", "hang.action", 6)]),
        ('[progress]\nsource = "none"\n[hang]\nstep_timeout = "5m"', [("J501", "hang.step_timeout", 6)]),
        ('[progress]\nsource = "none"\n[hang]\ninit_timeout = "5m"', [("J501", "hang.init_timeout", 6)]),
        ('[progress]\nsource = "none"\n[hang.phases]\neval = "5m"', [("J501", "hang.phases", 5)]),
        ('[progress]\nsource = "none"\n[hang]\nstep_timeout = "off"\nphases.eval = "off"\naction = "warn"', []),
        ("restart.max_restarts = 3", [("J502", "restart.max_restarts", 3)]),
        ("restart.max_restarts = 0", []),
        ('restart.max_restarts = 3\ncheckpoint.marker = "x"', []),
        ('stop.pre_wait = "5s"', [("J503", "stop.pre_wait", 3)]),
        ('stop.pre_wait = "5s"\nstop.pre_signal = "USR1"', []),
        ("[progress]\nsource = 'client'\nlog_pattern = '(?P<step>.)'", [("J503", "progress.log_pattern", 5)]),
        ("[progress]\nsource = 'client'\nfile = 'x'", [("J503", "progress.file", 5)]),
        (
            'restart.policy = "never"\nrestart.max_restarts = 3\ncheckpoint.marker = "x"',
            [("J503", "restart.max_restarts", 4)],
        ),
        ('hang.init_timeout = "5s"', [("J504", "hang.init_timeout", 3)]),
        ('restart.start_after = "1h"', [("J504", "restart.start_after", 3)]),
        ('restart.start_after = "1h"\nhang.init_timeout = "off"', []),
        ('restart.backoff = "5m"', [("J504", "restart.backoff", 3)]),
        ('restart.backoff_max = "1s"', [("J504", "restart.backoff_max", 3)]),
        ('restart.backoff = "5m"\nrestart.backoff_max = "1m"', [("J504", "restart.backoff_max", 4)]),
        ('restart.policy = "never"\nrestart.max_restarts = 5', [("J503", "restart.max_restarts", 4)]),
        ('restart.policy = "never"\nrestart.max_restarts = 0', []),
        (
            'restart.policy = "never"\nrestart.on_startup_failure = "restart"\nrestart.always_on_exit = [3]',
            [("J503", "restart.on_startup_failure", 4), ("J503", "restart.always_on_exit", 5)],
        ),
        ('stop.pre_signal = "USR1"', [("J503", "stop.pre_signal", 3)]),
        (
            "[progress]\nsource = 'none'\nlog_ranks = '1'\ntotal_steps = 5",
            [("J503", "progress.log_ranks", 5), ("J503", "progress.total_steps", 6)],
        ),
        ("[progress]\nlog_ranks = '1'", [("J503", "progress.log_ranks", 4)]),
        (
            "[progress]\nlog_ranks = '7'\nlog_pattern = '(?P<step>.)'\n[topology]\nnproc_per_node = 2",
            [("J501", "progress.log_ranks", 4)],
        ),
        ("[progress]\nlog_ranks = '1'\nlog_pattern = '(?P<step>.)'\n[topology]\nnproc_per_node = 2", []),
        ("[progress]\nlog_ranks = '7'\nlog_pattern = '(?P<step>.)'", []),
        ("[progress]\nlog_pattern = '(?P<step>.)(?P<bogus>.)'", [("J503", "progress.log_pattern", 4)]),
        ("[progress]\nlog_pattern = '(?P<step>.)(?P<total>.)(?P<loss>.)(?P<q>.)(?P=q)'", []),
        ("checkpoint.log_pattern = '(?P<step>.)(?P<q>.)'", [("J503", "checkpoint.log_pattern", 3)]),
        ("checkpoint.log_pattern = '(?P<step>.)'\nprogress.log_ranks = '1'", []),
        ("checkpoint.log_pattern = '(?P<step>.)'\nrestart.max_restarts = 3", []),
        ("restart.max_restarts = -1\nrestart.count_membership = true", [("J503", "restart.count_membership", 4)]),
        ('restart.max_restarts = -1\nrestart.restart_window = "1h"', [("J503", "restart.restart_window", 4)]),
        ('restart.restart_window = "1h"', []),
        (
            'restart.policy = "never"\nrestart.on_budget_spent = "hold"\nrestart.no_progress_limit = 5',
            [("J503", "restart.on_budget_spent", 4), ("J503", "restart.no_progress_limit", 5)],
        ),
        (
            'topology.nnodes = "1:2"\ntopology.grow_min_interval = "0s"',
            [("J503", "topology.grow_min_interval", 4)],
        ),
        ('topology.nnodes = "1:2"\ntopology.extra_nodes = "grow"\ntopology.grow_min_interval = "0s"', []),
        ("topology = {nnodes = '1:2', extra_nodes = 'grow', grow_without_checkpoint = true}", []),
        (
            "[topology]\nnnodes='1:2'\nextra_nodes='grow'\ngrow_without_checkpoint = true\n[checkpoint]\nmarker='x'",
            [("J503", "topology.grow_without_checkpoint", 6)],
        ),
        ('preemption.then = "wait-for-nodes"', [("J503", "preemption.then", 3)]),
        ("preemption.signals = ['TERM']\npreemption.then = 'wait-for-nodes'", []),
        ("preemption.signals = ['TERM']\npreemption.lead_time = '20s'", [("J504", "preemption.lead_time", 4)]),
        ("preemption.signals = ['TERM']\npreemption.lead_time = '20s'\nstop.grace = '20s'", []),
        (
            "preemption.signals = ['TERM']\npreemption.notice_interval = '1s'",
            [("J503", "preemption.notice_interval", 4)],
        ),
        (
            "preemption.signals = ['TERM']\npreemption.then = 'wait-for-nodes'\npreemption.exit_code = 3",
            [("J503", "preemption.exit_code", 5)],
        ),
        ("", []),
    ],
)
def test_what_may_not_be_meant_is_a_warning_where_it_stands(
    text: str, expected: list[tuple[str, str, int | None]]
) -> None:
    assert warnings(text) == expected


def test_an_interpreter_is_nothing_to_a_command() -> None:
    job = read_job(b"name = 'a'\n[run]\ncommand = ['x']\npython = 'python3'", "f.toml")
    assert [(warning.code, warning.key) for warning in job.warnings] == [("J503", "run.python")]


def test_a_warning_of_the_command_line_shows_both_places() -> None:
    job = read_job((LEAST + '[progress]\nsource = "none"').encode(), "f.toml", settings=["hang.action=fail"])
    (warning,) = job.warnings
    assert (
        warning.snippet
        == """  --> --set hang.action=fail
   |
   | hang.action=fail
   |             ^^^^ write source = "auto", or leave it out
   = nothing is watched at f.toml:4:10"""
    )
