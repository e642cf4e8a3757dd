"""`supctl help`: codes, keys, commands and documents, without a supd."""

import json

import pytest

from protocol.errors import JobInvalid
from protocol.exit_code import ExitCode
from protocol.job_file import read_job
from protocol.job_rules import warnings_of
from protocol.job_schema import SCHEMA
from supervisor.cli.app import ALIASES, COMMANDS
from supervisor.cli.codes import CODES
from supervisor.cli.documents import DOCUMENTS
from supervisor.cli.reference import FILES, key_paths
from supervisor.shell import config
from tests.cli.conftest import Supctl

# --- error codes -------------------------------------------------------------------------------------------------


def test_a_code_is_explained_with_its_mend_and_an_example(supctl: Supctl) -> None:
    result = supctl("help", "J204")
    assert (result.code, result.err) == (ExitCode.OK, "")
    assert result.out == (
        "J204: not a duration, or one without a unit\n"
        '  → write `"90s"`, `"1h30m"`, `"500ms"`\n'
        "\n"
        "  wrong:\n"
        "      grace = 300\n"
        "\n"
        "  right:\n"
        '      grace = "300s"\n'
    )


@pytest.mark.parametrize("topic", ["stop.grace", "grace"])
def test_a_key_is_found_without_its_file(supctl: Supctl, topic: str) -> None:
    assert supctl("help", topic) == supctl("help", "job.toml", "stop.grace")
    assert "job.toml, [stop]" in supctl("help", topic).out


def test_a_key_or_table_that_both_files_have_is_told_of_both(supctl: Supctl) -> None:
    assert "supd.toml, [node]" in supctl("help", "name").out
    assert "job.toml, at the top" in supctl("help", "name").out


def test_a_code_may_be_written_in_small_letters(supctl: Supctl) -> None:
    assert supctl("help", "c001").out.startswith("C001: no supd answers there")


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained(supctl: Supctl, code: str) -> None:
    result = supctl("help", code)
    assert result.code == ExitCode.OK
    assert result.out.startswith(f"{code}: {CODES[code].meaning}\n  → {CODES[code].mend}")


LEAST = 'name = "a"\n\n[run]\nscript = "a.py"\n\n'
TABLES = {
    "max_restarts": "restart",
    "policy": "restart",
    "never_on_exit": "restart",
    "grace": "stop",
    "pre_signal": "stop",
    "nproc_per_node": "topology",
    "log_pattern": "progress",
    "nnodes": "topology",
    "env": "run",
}
"""Where the keys belong that examples show without their table."""


def codes_of(text: str, *settings: str) -> set[str]:
    """What is wrong with a job file, or of a sound one, what it is warned of."""
    try:
        return {problem.code for problem in warnings_of(read_job(text.encode(), "job.toml", settings=settings).spec)}
    except JobInvalid as exc:
        return {problem.code for problem in exc.problems}


def codes_of_example(code: str, example: str) -> set[str]:
    """The same for an example, which shows only the lines that matter."""
    if code == "J006":
        return codes_of(LEAST, example.partition("--set ")[2])
    if code >= "J500":
        return codes_of(LEAST + example)
    table = TABLES.get(example.split(" = ")[0])
    return codes_of(f"[{table}]\n{example}" if table else example)


@pytest.mark.parametrize("code", [code for code, entry in CODES.items() if code.startswith("J") and entry.right])
def test_an_example_of_what_is_wrong_has_that_problem_and_its_mend_has_not(code: str) -> None:
    assert code in codes_of_example(code, CODES[code].wrong)
    assert code not in codes_of_example(code, CODES[code].right)


# --- job.toml and supd.toml --------------------------------------------------------------------------------------


def test_a_key_is_explained_with_its_type_default_and_meaning(supctl: Supctl) -> None:
    assert supctl("help", "job.toml", "stop.grace").out == (
        'job.toml, [stop]\n\n  grace  duration; default: "30s"\n      from `signal` to SIGKILL\n'
    )


def test_a_key_may_be_named_without_its_table_and_is_shown_wherever_there_is_one(supctl: Supctl) -> None:
    assert supctl("help", "job.toml", "grace").out == supctl("help", "job.toml", "stop.grace").out
    both = supctl("help", "supd.toml", "name").out
    assert "supd.toml, [node]" in both
    assert "supd.toml, [fleet]" in both


def test_a_table_is_shown_with_all_its_keys(supctl: Supctl) -> None:
    for word in ("stop", "[stop]"):
        out = supctl("help", "job.toml", word).out
        assert out.startswith("[stop]\nHow ranks are ended")
        assert all(f"\n  {name}  " in out for name in SCHEMA.tables["stop"])


def test_a_file_is_shown_with_its_rules_and_every_table_and_key(supctl: Supctl) -> None:
    out = supctl("help", "job.toml").out
    assert "script = " in out
    for table, keys in SCHEMA.tables.items():
        assert f"\n[{table}]  " in out
        assert all(name in out for name in keys)


@pytest.mark.parametrize("file", FILES)
def test_every_table_and_key_is_explained_in_eighty_columns(supctl: Supctl, file: str) -> None:
    for name in ["", *key_paths(FILES[file].schema)]:
        result = supctl("help", file, name)
        assert result.code == ExitCode.OK, name
        assert [line for line in result.out.splitlines() if len(line) > 80] == [], name


def test_the_schema_for_editors_is_printed_as_json(supctl: Supctl) -> None:
    schema = json.loads(supctl("help", "json", "job.toml").out)
    assert set(schema["properties"]) == {*SCHEMA.top, *SCHEMA.tables}
    schema = json.loads(supctl("help", "json", "supd.toml").out)
    assert set(schema["properties"]) == {*config.SCHEMA.top, *config.SCHEMA.tables}


# --- commands and documents --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [name for name in (*COMMANDS, *ALIASES) if name != "help"])
def test_a_command_is_explained_by_its_own_help(
    supctl: Supctl, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        supctl("help", command)
    assert ended.value.code == ExitCode.OK


def test_help_alone_is_the_list_of_commands(supctl: Supctl) -> None:
    assert supctl("help").out == supctl("--help").out


def test_the_documents_of_json_are_listed_and_each_has_its_schema(supctl: Supctl) -> None:
    listed = supctl("help", "json").out
    for name in DOCUMENTS:
        assert f"  {name} " in listed
        assert json.loads(supctl("help", "json", name).out)["title"] == f"supctl.{name}/1"


# --- what is not there -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("stpo",), "no help on 'stpo'; did you mean `supctl help stop`?"),
        (("job.tom",), "no help on 'job.tom'; did you mean `supctl help job.toml`?"),
        (("job.toml", "stop.grce"), "job.toml has no key 'stop.grce'; did you mean `supctl help job.toml stop.grace`?"),
        (("json", "state"), "no document 'state'; did you mean `supctl help json status`?"),
        (("J2044",), "no help on 'J2044'"),
        (("X999",), "no error has the code X999"),
        (("json", "job.tml"), "no document 'job.tml'; did you mean `supctl help json job.toml`?"),
        (("stop", "grace"), "`stop` has no keys"),
        (("J204", "x"), "J204 has no keys"),
    ],
)
def test_an_unknown_topic_is_a_usage_error_that_names_the_near_one(
    supctl: Supctl, argv: tuple[str, ...], said: str
) -> None:
    result = supctl("help", *argv)
    assert (result.code, result.out) == (ExitCode.USAGE, "")
    assert result.err.splitlines()[0] == f"error[C010]: {said}"
    assert result.err.splitlines()[1].startswith("→ ")
