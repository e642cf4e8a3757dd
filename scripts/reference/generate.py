"""Writes every generated file, or with --check says which are not what they would be (scripts/docs)."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from commands import daemon_commands, supctl_commands
from man import command_page, supctl_page, supd_page, suprun_page
from pages import cli_page, config_template, error_codes_page, file_page
from torchrun import from_torchrun_page
from wire import protocol_page

from supervisor.cli.documents import DOCUMENTS, json_schema
from supervisor.cli.json_fields import as_json
from supervisor.cli.reference import FILES, JOB_FILE, SUPD_TOML, editor_schema

ROOT = Path(__file__).resolve().parents[2]
ONLY_GENERATED = ("docs/man/*.1", "docs/schemas/*.json")
"""Folders where what is not generated any more is removed."""


def generated() -> Iterator[tuple[str, str]]:
    """Every generated file: its path in the checkout, and its content."""
    supctl, supd = supctl_commands(), daemon_commands()
    yield "docs/job-file.md", file_page(JOB_FILE)
    yield "docs/supd-toml.md", file_page(SUPD_TOML)
    yield "docs/error-codes.md", error_codes_page()
    yield "docs/from-torchrun.md", from_torchrun_page()
    yield "docs/cli.md", cli_page(supctl, supd)
    yield "docs/protocol.md", protocol_page()
    yield "conf/supd.toml", config_template(SUPD_TOML)
    yield "docs/man/supctl.1", supctl_page(supctl)
    yield "docs/man/supd.1", supd_page(supd)
    yield "docs/man/suprun.1", suprun_page()
    for command in supctl:
        yield f"docs/man/supctl-{command.name}.1", command_page(command)
    for file in FILES.values():
        yield f"docs/schemas/{file.name}.json", as_json(editor_schema(file)) + "\n"
    for name in DOCUMENTS:
        yield f"docs/schemas/supctl.{name}.json", as_json(json_schema(name)) + "\n"


def main() -> int:
    """Write or check; ends with 1 if something is out of step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    is_check = parser.parse_args().check
    wanted = {ROOT / path: text for path, text in generated()}
    gone = {path for pattern in ONLY_GENERATED for path in ROOT.glob(pattern)} - wanted.keys()
    changed = sorted(gone | {path for path, text in wanted.items() if not path.exists() or path.read_text() != text})
    for path in changed:
        print(f"{path.relative_to(ROOT)} {'is out of step: run scripts/docs' if is_check else 'written'}")
        if is_check:
            continue
        if path in gone:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
    return int(is_check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
