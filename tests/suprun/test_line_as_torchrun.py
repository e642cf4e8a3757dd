"""Hundreds of drawn command lines and PET_ variables mean to suprun what they mean to torchrun's own parser."""

import importlib.util
import json
import random
import string
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from protocol.errors import Refused
from supervisor.suprun.line import read_line
from supervisor.suprun.options import GROUPS, OPTIONS, Form, Option

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="could not import 'torch'")

CASES = 800
LIMIT_S = 100.0
OWN = {option.dest for option in GROUPS[-1].options}
TORCHRUN = """
import contextlib, io, json, os, sys
from torch.distributed.run import get_args_parser

def read(words, variables):
    for name in [name for name in os.environ if name.startswith("PET_")]:
        del os.environ[name]
    os.environ.update(variables)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return vars(get_args_parser().parse_args(words))
        except (SystemExit, ValueError):
            return None

json.dump([read(*case) for case in json.load(sys.stdin)], sys.stdout)
"""


CUT_BEHIND = ["--r=16", "--log"]
"""Behind the script; torchrun looks there for cut names of its own, and refuses those that are not clear."""


class Case(NamedTuple):
    """A line, its variables, and whether torchrun may find a cut name in it that is not clear to it."""

    words: list[str]
    variables: dict[str, str]
    is_cut: bool = False


GIVEN = [
    Case([], {}),
    Case(["train.py"], {}),
    Case(["train.py", "--r=16", "--log", "x", "--node", "1", "-m", "y"], {}, is_cut=True),
    Case(["train.py", "--", "--x"], {}),
    Case(["train.py", "--", "--", "x"], {}),
    Case(["--", "train.py", "--", "x"], {}),
    Case(["--", "-x.py", "-t"], {}),
    Case(["--nnodes", "--", "train.py"], {}),
    Case(["--nnodes=2", "--nnodes=3", "train.py"], {"PET_NNODES": "4"}),
    Case(["--max-restarts", "-1", "train.py"], {}),
    Case(["--role", "-x y", "train.py"], {}),
    Case(["--role", "", "train.py"], {}),
    Case(["--role=", "train.py"], {}),
    Case(["-r3", "-t", "0:3,1:1", "train.py"], {}),
    Case(["-t=2", "train.py"], {}),
    Case(["-mr3", "train.py"], {}),
    Case(["-mt", "2", "train"], {}),
    Case(["-", "train.py"], {}),
    Case(["-1", "train.py"], {}),
    Case(["", "train.py"], {}),
    Case(["-x y", "train.py"], {}),
    Case(["--standalone=1", "train.py"], {}),
    Case(["--stand", "--mod", "train.py"], {}, is_cut=True),
    Case(["--rdzv-e", "a:1", "train.py"], {}, is_cut=True),
    Case(["--start-method", "thread", "train.py"], {}),
    Case(["train.py"], {"PET_START_METHOD": "thread"}),
    Case(["train.py"], {"PET_STANDALONE": "1", "PET_MODULE": "0", "PET_RUN_PATH": "2"}),
    Case(["train.py"], {"PET_STANDALONE": "yes"}),
    Case(["train.py"], {"PET_STANDALONE": ""}),
    Case(["train.py"], {"PET_MAX_RESTARTS": "many"}),
    Case(["--max-restarts=2", "train.py"], {"PET_MAX_RESTARTS": "3"}),
    Case(["train.py"], {"PET_LOGS_SPECS": "x", "PET_NUMA_BINDING": "node"}),
    Case(["train.py"], {"PET_DUPLICATE_STDOUT_FILTERS": "a,,b,c", "PET_TRAINING_SCRIPT": "x"}),
    Case(["--duplicate-stdout-filters", "", "train.py"], {}),
    Case(["--duplicate-stderr-filters", ",,,a,,,", "train.py"], {}),
]


def drawn(rng: random.Random) -> Case:
    """A line that a person might write, and now and then one that nobody should."""
    options = [option for dest, option in OPTIONS.items() if dest not in OWN]
    words: list[str] = []
    is_cut = False
    for option in rng.sample(options, rng.choice([0, 1, 2, 3, 6])):
        name = rng.choice(option.spellings)
        if name.startswith("--") and rng.random() < 0.1:
            name, is_cut = name[: rng.randint(4, len(name))], True
        words += spelled(rng, option, name)
    if rng.random() < 0.05:
        words.insert(rng.randint(0, len(words)), rng.choice(["--", "-x", "--no-such", "-", "-3", "a b"]))
    words += rng.choices(["train.py", "-c", "pkg.train", ""], [20, 1, 3, 0.3])
    behind = rng.choices([*CUT_BEHIND, "--", "-m", "x", "--nnodes", "", "-t3", "ü", "a b"], k=rng.choice([0, 1, 4]))
    words += behind
    chosen = (option for option in rng.sample(options, rng.choice([0, 0, 1, 3])))
    variables = {f"PET_{option.dest.upper()}": value_of(rng, option) for option in chosen}
    return Case(words[: rng.choice([99, 99, 99, 3])], variables, is_cut or bool({*behind} & {*CUT_BEHIND}))


def spelled(rng: random.Random, option: Option, name: str) -> Iterator[str]:
    if option.form is Form.SWITCH:
        return iter([name])
    value = value_of(rng, option)
    if rng.random() < 0.5 and name.startswith("--"):
        return iter([f"{name}={value}"])
    return iter([name, value])


def value_of(rng: random.Random, option: Option) -> str:
    """Mostly of the form that the option takes."""
    if rng.random() < 0.05:
        return rng.choice(["", "-1", "-x", "x", " 7 ", "1e3", "1_0", "--tee"])
    if option.choices:
        return rng.choice(option.choices)
    match option.form:
        case Form.SWITCH:
            return rng.choice(["0", "1", "1", "2"])
        case Form.WHOLE:
            return str(rng.randint(0, 40000))
        case Form.NUMBER:
            return rng.choice(["0.5", "2", "1e-3", "inf"])
        case Form.WORDS:
            return "".join(rng.choices("ab,", k=rng.randint(0, 8)))
        case Form.TEXT:
            return "".join(rng.choices(string.ascii_letters + ":=,.0123", k=rng.randint(1, 9)))


def test_every_line_means_what_it_means_to_torchrun() -> None:
    rng = random.Random(8)
    cases = [*GIVEN, *(drawn(rng) for _ in range(CASES))]
    text = json.dumps([(case.words, case.variables) for case in cases])
    command = [sys.executable, "-W", "ignore", "-c", TORCHRUN]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    answers: list[dict[str, Any] | None] = json.loads(done.stdout)
    assert sum(answer is not None for answer in answers) > CASES / 2, "most of the lines are sound"
    for case, theirs in zip(cases, answers, strict=True):
        if theirs is not None and not theirs["training_script"].strip():
            with pytest.raises(Refused, match=r"backslash|the script is empty"):  # torchrun would find no such file
                read_line(case.words, case.variables)
        else:
            assert ours(case) == theirs or (theirs is None and case.is_cut), case


def ours(case: Case) -> dict[str, Any] | None:
    """suprun's reading in torchrun's words; None for a line that it refuses."""
    try:
        line = read_line(case.words, case.variables)
    except Refused:
        return None
    flags = {name: value for name, value in msgspec.structs.asdict(line.flags).items() if name not in OWN}
    return {**flags, "training_script": line.script, "training_script_args": list(line.args)}
