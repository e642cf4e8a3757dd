"""supervisor/suprun/line.py: what is an option and what is the script's, and what is said of a line that is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.suprun.help import help_text
from supervisor.suprun.line import comma_separated, read_line
from supervisor.suprun.options import BY_SPELLING, OPTIONS, Flags, Form
from tests.suprun.build import refusal

ROOT = Path(__file__).parents[2]


def test_everything_behind_the_script_is_the_scripts() -> None:
    rest = ["--r=16", "--log", "x", "--node", "1", "-m", "y", "--standalone", "", "a b"]
    line = read_line(["-t", "3", "script.py", *rest], {})
    assert (line.script, line.args, line.flags.tee) == ("script.py", tuple(rest), "3")
    assert line.flags == Flags(tee="3")


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.dest)
def test_every_option_has_both_spellings_and_a_variable_that_it_wins_over(option: object) -> None:
    assert isinstance(option, type(OPTIONS["nnodes"]))
    values = {Form.SWITCH: ("0", "1"), Form.WHOLE: ("7", "8"), Form.NUMBER: ("7.5", "8.5")}
    of_variable, of_line = values.get(option.form, (option.choices or ("x", "y"))[-2:])
    environ = {option.variable: of_variable} if option.variable else {"PET_LOGS_SPECS": "x", "PET_NUMA_BINDING": "node"}
    default = read_line(["a.py"], environ).flags
    assert (default == Flags()) == (not option.variable or option.form is Form.SWITCH)
    for spelling in option.spellings:
        words = [spelling] if option.form is Form.SWITCH else [spelling, of_line]
        flags = read_line([*words, "a.py"], environ).flags
        assert getattr(flags, option.dest) != getattr(default, option.dest)
    if option.form is Form.SWITCH and option.variable:
        assert getattr(read_line(["a.py"], {option.variable: "1"}).flags, option.dest) is True


def test_the_spellings_of_two_options_are_never_the_same() -> None:
    assert len(BY_SPELLING) == sum(len(option.spellings) for option in OPTIONS.values())
    assert set(OPTIONS) == set(Flags.__struct_fields__)


def test_who_gave_a_value_is_known_for_messages() -> None:
    line = read_line(["--max_restarts=2", "a.py"], {"PET_NNODES": "4"})
    assert line.origins == {"nnodes": "PET_NNODES", "max_restarts": "--max_restarts"}
    assert (line.is_given("nnodes", "role"), line.is_given("role")) == (True, False)
    assert (line.origin("nnodes"), line.origin("role")) == ("PET_NNODES", "--role")


@pytest.mark.parametrize(
    ("text", "words"),
    [("", [""]), ("a", ["a"]), ("a,b", ["a", "b"]), ("a,,b,c", ["a,b", "c"]), (",", ["", ""]), (",,,", [",", ""])],
)
def test_two_commas_are_one_in_a_word(text: str, words: list[str]) -> None:
    assert comma_separated(text) == words


def test_help_needs_no_script_and_fits_the_terminal() -> None:
    assert read_line(["--help"], {}).flags.help
    assert read_line(["--nnodes", "2", "-h", "--no-script-here", "x"][:3], {}).flags.help
    for columns in (0, 40, 60, 80, 1000):
        assert max(map(len, help_text(columns).splitlines())) <= min(100, max(40, columns))
    assert all(f" {option.names[-1]}" in help_text(80) for option in OPTIONS.values())


# --- wrong lines -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "message", "mend"),
    [
        ("--nproc-per-nude=8 a.py", "C020", "suprun has no option --nproc-per-nude; did you mean `--nproc", ""),
        ("--rdzv_bakend c10d a.py", "C020", "suprun has no option --rdzv_bakend; did you mean `--rdzv-backend`?", ""),
        ("--lr 3 a.py", "C020", "suprun has no option --lr", "options of the script stand behind it: "),
        ("-x a.py", "C020", "suprun has no option -x", "options of the script stand behind it: "),
        ("-mx a.py", "C020", "suprun has no option -mx", ""),
        ("--rdzv=x a.py", "C020", "--rdzv may be --rdzv-backend or --rdzv-endpoint or ", "write the whole name"),
        ("--nnodes", "C020", "--nnodes has no value: it takes N|MIN:MAX", "--nnodes 1:1"),
        ("--nnodes --standalone a.py", "C020", "--nnodes has no value", "--nnodes 1:1"),
        ("--standalone=1 a.py", "C020", "--standalone takes no value, and has '1'", "--standalone"),
        ("--max-restarts=x a.py", "C020", "--max-restarts is a whole number, not 'x'", "--max-restarts 0"),
        ("--monitor-interval x a.py", "C020", "--monitor-interval is a number, not 'x'", "--monitor-interval 0.1"),
        ("--start-method x a.py", "C020", "--start-method is one of spawn, fork, forks", "--start-method spawn"),
        ("--nproc-per-node 8", "C021", "the line names no script", "suprun --nproc-per-node 8 train.py"),
        ("", "C021", "the line names no script", "suprun train.py"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_one_error_with_its_mend(line: str, code: str, message: str, mend: str) -> None:
    found = refusal(line)
    assert (found[0], found[1][: len(message)], found[2][: len(mend)]) == (code, message, mend)


def test_a_variable_that_cannot_be_read_is_named() -> None:
    assert refusal("a.py", {"PET_STANDALONE": "yes"}) == (
        "C020",
        "PET_STANDALONE is 1 or 0, not 'yes'",
        "export PET_STANDALONE=1, or unset it",
    )
    assert refusal("a.py", {"PET_MAX_RESTARTS": "x"})[2] == "export PET_MAX_RESTARTS=0, or unset it"


def test_code_on_the_line_ends_with_the_line_that_runs_it() -> None:
    words = ["--nproc_per_node=8", "-c", "import torch\nprint('a')\n", "x"]
    assert refusal(words) == (
        "C026",
        "-c is an option of python, and none of torchrun or suprun",
        r"suprun --nproc_per_node=8 --no-python python -c $'import torch\nprint(\'a\')\n' x",
    )
    line = read_line(["--nproc_per_node=8", "--no-python", "python", "-c", words[2], "x"], {})
    assert (line.script, line.args) == ("python", ("-c", words[2], "x"))


@pytest.mark.parametrize("left", [[" "], [" ", "#", "min", "2", "nodes"], ["# min 2"], ["\t"]])
def test_a_comment_behind_a_backslash_ends_with_the_line_that_is_meant(left: list[str]) -> None:
    code, message, mend = refusal(["--nproc_per_node=8", "--nnodes=2:8", *left])
    assert (code, f"the script would be {left[0]!r}" in message) == ("C027", True)
    assert mend == (
        "write no comment there: suprun --nproc_per_node=8 --nnodes=2:8 "
        "--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT train.py"
    )


def test_an_empty_script_is_told_as_what_a_shell_makes_of_a_variable_that_is_not_set() -> None:
    assert refusal(["--nproc_per_node=8", "", "x"]) == (
        "C021",
        "the script is empty, as a variable of the shell is that is not set",
        "suprun --nproc_per_node=8 train.py",
    )


def test_a_line_of_endless_words_is_refused() -> None:
    assert refusal(["a.py", *["x"] * 10_000])[:2] == ("C020", "the command line has more than 10000 words")


def test_a_line_is_read_without_the_slow_modules_of_python() -> None:
    program = (
        "import sys, supervisor.suprun.job, supervisor.suprun.plan; "
        "print(*{'argparse', 'asyncio', 'tomllib', 'subprocess', 'socket', 'torch'} & set(sys.modules))"
    )
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    assert done.stdout.split() == []
