"""What `supctl help CODE` shows of suprun's codes is so."""

import pytest

from protocol.errors import Refused
from supervisor.cli.codes import CODES
from supervisor.suprun.conversion import convert
from supervisor.suprun.line import read_line
from supervisor.suprun.plan import plan_of
from supervisor.suprun.shell_words import Shell
from tests.suprun.build import refusal, step

SHOWN = ["C020", "C021", "C022", "C023", "C024", "C026"]


def words(line: str) -> list[str]:
    """The words behind suprun."""
    (all_words,) = Shell(line).commands
    return [word.told for word in all_words][1:]


@pytest.mark.parametrize("code", SHOWN)
def test_an_example_of_what_is_wrong_is_refused_with_its_code_and_its_mend_is_not(code: str) -> None:
    assert refusal(words(CODES[code].wrong))[0] == code
    plan_of(read_line(words(CODES[code].right), {}), {})


def test_the_examples_of_slurm_of_a_comment_and_of_a_conversion_are_so_as_well() -> None:
    eight = CODES["C025"].wrong.partition("-node=")[2][:1]
    assert refusal("train.py", step(SLURM_STEP_TASKS_PER_NODE=f"{eight}(x4)"))[0] == "C025"
    assert refusal([CODES["C027"].wrong.split()[1], " "])[0] == "C027"
    assert not Shell(CODES["C027"].right).has_broken_joins
    with pytest.raises(Refused) as caught:
        convert(CODES["C029"].wrong.partition("--from ")[2])
    assert caught.value.code == "C029"
    convert(CODES["C029"].right.partition("'")[2].rstrip("'"))
