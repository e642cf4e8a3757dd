"""What users and scripts rely on is documented, all of it, and nothing that is not there."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.messages.control import Outcome
from protocol.tables import Kind
from supervisor.cli.app import ALIASES, COMMANDS
from supervisor.cli.codes import CODES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LIMIT_S = 60.0


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


# --- generated pages ---------------------------------------------------------------------------------------------


def test_the_generated_pages_schemas_and_manual_are_what_the_code_says() -> None:
    script = ROOT / "scripts" / "reference" / "generate.py"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, script, "--check"], env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("path", sorted((DOCS / "man").glob("*.1")), ids=lambda path: path.name)
def test_a_manual_page_has_its_parts_and_only_macros_of_man(path: Path) -> None:
    lines = path.read_text().splitlines()
    requests = [line.split()[0] for line in lines if line.startswith((".", "'"))]
    assert set(requests) <= {'.\\"', ".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".BR", ".I", ".RS", ".RE", ".nf", ".fi"}
    assert [line for line in lines if not line] == []
    for opening, closing in ((".RS", ".RE"), (".nf", ".fi")):
        assert requests.count(opening) == requests.count(closing)
    sections = [line.removeprefix(".SH ") for line in lines if line.startswith(".SH ")]
    assert sections[:2] == ["NAME", "SYNOPSIS"]
    assert sections[-1] == "SEE ALSO"
    pages = {other.stem for other in (DOCS / "man").glob("*.1")}
    linked = {line.split()[1].replace("\\-", "-") for line in lines if line.startswith(".BR ")}
    assert linked <= pages


# --- error codes -------------------------------------------------------------------------------------------------

LETTERS_OF_KINDS = {
    "protocol/job_file.py": "J",
    "protocol/job_schema.py": "J",
    "protocol/job_checks.py": "J",
    "protocol/job_rules.py": "J",
    "protocol/overlay.py": "J",
    "protocol/topology_checks.py": "J",
    "supervisor/shell/config.py": "S",
    "supervisor/shell/config_checks.py": "S",
    "supervisor/shell/config_rules.py": "S",
}
"""The files that speak of one of the two files only; what others find wrong can be wrong with both."""


CODE_TABLES = {ROOT / "supervisor" / "cli" / name for name in ("codes.py", "client_codes.py", "file_codes.py")}


def error_codes() -> set[str]:
    """Every code in the source: written out, or a letter before a `Kind`."""
    found = set()
    for folder in ("protocol", "supervisor"):
        for path in sorted({*(ROOT / folder).rglob("*.py")} - CODE_TABLES):
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


def test_every_error_code_is_explained_with_its_meaning_and_mend_and_no_other_is() -> None:
    assert sorted(CODES) == sorted(error_codes())
    assert all(entry.meaning and entry.mend for entry in CODES.values())


# --- commands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name)
def test_no_page_names_a_command_that_is_not_there(path: Path) -> None:
    code = " ".join(re.findall("(?s)```.*?```|`[^`\n]+`", path.read_text()))
    assert set(re.findall(r"(?<![a-z] )supctl ([a-z]+)", code)) <= {*COMMANDS, *ALIASES}


# --- events ------------------------------------------------------------------------------------------------------


def emitted() -> dict[str, set[str]]:
    """Every kind of event that the code makes, with the names of its details."""
    found: dict[str, set[str]] = {}
    of_incidents: set[str] = set()  # which are noted in one place, for both kinds
    for folder in ("protocol", "supervisor/daemon"):
        for _, call in calls(folder):
            if called(call) not in ("note", "_note", "Note", "_of_incident") or not call.args:
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
