"""What users and scripts rely on is documented, all of it, and nothing that is not there."""

import argparse
import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from protocol import coordinator_events, job, restart
from protocol.messages import control, member, runner
from protocol.messages.control import Outcome
from protocol.tables import Kind, Schema
from supervisor.cli.app import ALIASES, COMMANDS
from supervisor.shell import config

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def rows(page: str) -> Iterator[tuple[str, list[str]]]:
    """Every row of a page's tables that begins with code: the heading above it, and its cells."""
    heading = ""
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
        elif line.startswith("| `"):
            yield heading, [cell.strip() for cell in line.strip("|").split("|")]


def in_code(cell: str) -> list[str]:
    """The words of a cell that are set in code."""
    return re.findall("`([^`]+)`", cell)


def calls(folder: str) -> Iterator[tuple[Path, ast.Call]]:
    """Every call in the files of a folder."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield from ((path, node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


# --- job.toml and supd.toml --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "schema"), [("job-file.md", job.SCHEMA), ("supd-toml.md", config.SCHEMA)])
def test_every_key_of_a_file_is_documented_and_nothing_else_is(page: str, schema: Schema) -> None:
    known = {f"{table}.{key}" for table, keys in schema.tables.items() for key in keys} | set(schema.top)
    documented = []
    for heading, cells in rows(page):
        table = heading.strip("[]") if heading.startswith("[") else ""
        documented += [f"{table}.{key}" if table else key for key in in_code(cells[0])]
    assert sorted(documented) == sorted(known)


# --- error codes -------------------------------------------------------------------------------------------------

LETTERS_OF_KINDS = {"protocol/job.py": "J", "supervisor/shell/config.py": "S"}
"""The files that speak of one of the two files only; what others find wrong can be wrong with both."""


def error_codes() -> set[str]:
    """Every code in the source: written out, or a letter before a `Kind`."""
    found = set()
    for folder in ("protocol", "supervisor"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            letters = LETTERS_OF_KINDS.get(str(path.relative_to(ROOT)), "JS")
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Constant(value=str(text)) if re.fullmatch("[A-Z][0-9]{3}", text):
                        found.add(text)
                    case ast.Attribute(value=ast.Name(id="Kind"), attr=name):
                        found |= {f"{letter}{Kind[name]:03}" for letter in letters}
                    case _:
                        pass
    return found


def test_every_error_code_is_documented_with_its_meaning_and_mend_and_no_other_is() -> None:
    documented = []
    for _, (codes, meaning, mend) in rows("error-codes.md"):
        documented += in_code(codes)
        assert meaning, codes
        assert mend, codes
    assert sorted(documented) == sorted(error_codes())


# --- commands ----------------------------------------------------------------------------------------------------


def options_of(command: str) -> set[str]:
    """The long options of a command of supctl."""
    parser = argparse.ArgumentParser(add_help=False)
    import_module(f"supervisor.cli.{COMMANDS[command].module}").add_arguments(parser)
    return {name for action in parser._actions for name in action.option_strings if name.startswith("--")}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_every_option_of_it_is_documented(command: str) -> None:
    page = (DOCS / "cli.md").read_text()
    assert f"supctl {command}" in page
    assert {option for option in options_of(command) if option not in page} == set()


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name)
def test_no_page_names_a_command_that_is_not_there(path: Path) -> None:
    code = " ".join(re.findall("(?s)```.*?```|`[^`\n]+`", path.read_text()))
    assert set(re.findall(r"supctl ([a-z]+)", code)) <= {*COMMANDS, *ALIASES}


def test_no_option_is_documented_that_is_not_there() -> None:
    page = (DOCS / "cli.md").read_text()
    options = set(re.findall(r"--[a-z][a-z-]*", page))
    assert options <= {"--addr", "--quiet", "--color", "--help", "--version"}.union(*map(options_of, COMMANDS))


# --- events ------------------------------------------------------------------------------------------------------


def emitted() -> dict[str, set[str]]:
    """Every kind of event that the code makes, with the names of its details."""
    found: dict[str, set[str]] = {}
    of_incidents: set[str] = set()  # which are noted in one place, for both kinds
    for folder in ("protocol", "supervisor/daemon"):
        for _, call in calls(folder):
            if called(call) not in ("_note", "Note", "_set_incident") or not call.args:
                continue
            names = {keyword.arg for keyword in call.keywords if keyword.arg}
            tables = [arg.keys for arg in call.args if isinstance(arg, ast.Dict)]
            names |= {str(key.value) for keys in tables for key in keys if isinstance(key, ast.Constant)}
            match call.args[0]:
                case ast.Constant(value=str(kind)):
                    found.setdefault(kind, set()).update(names)
                case ast.JoinedStr():  # job.<outcome>
                    found |= {f"job.{outcome}": names for outcome in Outcome}
                case ast.Name(id="kind"):
                    of_incidents |= names
                case _:
                    pass  # hands on a note made elsewhere
    return {kind: of_incidents if kind.startswith("incident.") else names for kind, names in found.items()}


def test_every_event_and_every_detail_of_it_is_documented_and_nothing_else_is() -> None:
    documented = {in_code(cells[0])[0]: set(in_code(cells[2])) for _, cells in rows("events.md")}
    assert documented == emitted()


# --- our own log -------------------------------------------------------------------------------------------------

LEVELS = ("debug", "info", "warning", "error", "exception")


def logged() -> dict[str, set[str]]:
    """Every event of our own log with the levels it has."""
    found: dict[str, set[str]] = {}
    for path, call in calls("supervisor"):
        match call.func:
            case ast.Attribute(value=ast.Name(id="log") | ast.Call(), attr=level) if level in LEVELS:
                name = call.args[0]
                where = f"{path.relative_to(ROOT)}:{call.lineno}"
                assert isinstance(name, ast.Constant), f"{where}: the name of an event is a literal"
                assert isinstance(name.value, str), where
                assert re.fullmatch(r"[a-z]+(_[a-z]+)+", name.value), f"{where}: {name.value}"
                found.setdefault(name.value, set()).add("error" if level == "exception" else level)
    return found


def test_every_event_of_our_own_log_is_documented_and_nothing_else_is() -> None:
    documented = {in_code(cells[0])[0]: set(cells[1].split(", ")) for _, cells in rows("log-events.md")}
    assert documented == logged()


# --- messages ----------------------------------------------------------------------------------------------------


def test_every_message_and_its_every_field_is_documented_and_nothing_else_is() -> None:
    known = {}
    for module in (member, runner, control, coordinator_events, restart):
        for name, value in vars(module).items():
            if isinstance(value, type) and hasattr(value, "__struct_fields__") and value.__module__ == module.__name__:
                known[name] = set(value.__struct_fields__)
    documented = {in_code(cells[0])[0]: set(in_code(cells[1])) for _, cells in rows("protocol.md")}
    assert documented == known
