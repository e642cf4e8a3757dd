"""The reference pages and the template of supd.toml."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from commands import CommandText, Option, common_options
from tabular import table_text

from protocol.exit_code import ExitCode
from protocol.messages.control import RANK_STATES, RUN_STATES
from protocol.tables import Key
from supervisor.cli.app import aliases_text
from supervisor.cli.codes import SECTIONS
from supervisor.cli.documents import DOCUMENTS
from supervisor.cli.json_fields import Schema
from supervisor.cli.reference import EXPANDED, File, one_of_text, toml_default

MARK = "<!-- Written by scripts/docs from the code: change it there. -->\n\n"
CLI_TEMPLATE = Path(__file__).with_name("cli.md")
COMMENT_COLUMNS = 100
ERROR_CODES_INTRO = """
Every error that supd and supctl tell has a code, what is wrong, and the next step; `supctl help CODE` says it too, with
an example for many. Codes stay stable, so that scripts and searches can rely on them; with `--json` they are in the
error document ([cli.md](cli.md)). J is the job file, S is supd.toml, F is supd with its fleet and runs, C is supctl and
suprun.
"""


# --- job.toml and supd.toml --------------------------------------------------------------------------------------


def file_page(file: File) -> str:
    """docs/job-file.md, docs/supd-toml.md."""
    parts = [f"# {file.title}", file.intro.strip(), "## Keys", _keys_table(file.schema.top)]
    for table, keys in file.schema.tables.items():
        parts += [f"### [{table}]", file.about[table]]
        if table in file.one_of:
            parts.append(one_of_text(file.one_of[table]))
        parts.append(_keys_table(keys))
        if table in file.notes:
            parts.append(file.notes[table])
    return MARK + "\n\n".join([*parts, "## Errors", file.foot]) + "\n"


def _keys_table(keys: Mapping[str, Key]) -> str:
    rows = [
        (f"`{name}`", f"{key.type} {EXPANDED}" if key.is_expanded else key.type, key.default, key.meaning)
        for name, key in keys.items()
    ]
    return table_text(("key", "type", "default", "meaning"), rows)


def config_template(file: File) -> str:
    """conf/supd.toml: every key with its default, or an example where that is no value, all commented out."""
    lines = [
        "# supd.toml: every key, commented out. The value is the default, or an example where the comment names that.",
        '# Relative paths start at the folder of this file, "~/" at your home. Durations: "90s", "1h30m", "500ms".',
        "# The reference is docs/supd-toml.md. Written by scripts/docs from the code.",
    ]
    for name, key in file.schema.top.items():
        lines += ["", *_commented(file, name, name, key)]
    for table, keys in file.schema.tables.items():
        lines += ["", f"[{table}] # {file.about[table]}"]
        for name, key in keys.items():
            lines += ["", *_commented(file, f"{table}.{name}", name, key)]
    return "\n".join(lines) + "\n"


def _commented(file: File, path: str, name: str, key: Key) -> list[str]:
    is_value = toml_default(key) is not None
    text = key.meaning if is_value else f"{key.meaning}; default: {key.default}"
    if " or " in key.type:
        text += f"; {key.type}"
    comment = wrap(text, COMMENT_COLUMNS, initial_indent="# ", subsequent_indent="# ")
    return [*comment, f"#{name} = {key.default if is_value else file.examples[path]}"]


# --- error codes -------------------------------------------------------------------------------------------------


def error_codes_page() -> str:
    """docs/error-codes.md."""
    parts = ["# Error codes", ERROR_CODES_INTRO.strip()]
    for section in SECTIONS:
        rows = [(" ".join(f"`{code}`" for code in e.codes), e.meaning, e.mend) for e in section.entries]
        parts += [f"## {section.title}", section.about, table_text(("code", "meaning", "mend"), rows)]
    return MARK + "\n\n".join(filter(None, parts)) + "\n"


# --- the command line --------------------------------------------------------------------------------------------


def cli_page(supctl: Sequence[CommandText], supd: Sequence[CommandText]) -> str:
    """docs/cli.md: a template with the commands, exit codes and documents filled in."""
    filled = {
        "COMMANDS": "\n".join(f"supctl {c.name:<11} {c.summary}" for c in supctl),
        "EVERYWHERE": _options_table("option", common_options()),
        "JOB STATES": ", ".join(RUN_STATES),
        "RANK STATES": ", ".join(RANK_STATES),
        "SUPCTL": "\n\n".join(_command_section(command) for command in supctl),
        "SUPD": "\n\n".join(_command_section(command) for command in supd),
        "EXIT CODES": table_text(("code", "meaning"), [(str(int(code)), code.meaning) for code in ExitCode]),
        "DOCUMENTS": _documents_table(),
    }
    page = CLI_TEMPLATE.read_text()
    for name, text in filled.items():
        place = f"<!-- {name} -->"
        assert page.count(place) == 1, place
        page = page.replace(place, text)
    return MARK + page


def _command_section(command: CommandText) -> str:
    parts = [f"### {command.name}", f"```\n{command.usage}\n```", command.description]
    parts.append(also(command))
    parts += [_options_table("argument", command.arguments), _options_table("option", command.options)]
    return "\n\n".join(filter(None, parts))


def also(command: CommandText) -> str:
    """The other names of a command of supctl; "" where it has none."""
    text = aliases_text(command.name, each="`supctl {}`")
    return text[:1].upper() + text[1:]


def _options_table(title: str, options: Iterable[Option]) -> str:
    rows = [(f"`{option.form.replace(', ', '`, `')}`", option.meaning) for option in options]
    return table_text((title, "meaning"), rows) if rows else ""


def _documents_table() -> str:
    rows = []
    seen: set[str] = set()
    for name, document in DOCUMENTS.items():
        schema = document.content.schema
        properties = schema["properties"]
        assert isinstance(properties, dict)
        made_by = f"`{document.made_by}`" if document.made_by.startswith("supctl") else document.made_by
        keys = _keys_text(properties.get("data", schema), seen)
        rows.append((f"[{name}](schemas/supctl.{name}.json)", made_by, keys))
    return table_text(("document", "printed by", "keys"), rows)


def _keys_text(schema: Schema, seen: set[str]) -> str:
    """The keys of an object, with those of the objects in it, where these are `seen` for the first time."""
    words = []
    properties = schema.get("properties", {})
    assert isinstance(properties, dict)
    for name, value in properties.items():
        inner = _inner_object(value)
        about = str(inner["description"]) if "properties" in inner else ""
        keys = about if about in seen else _keys_text(inner, seen)
        seen.add(about)
        words.append(f"`{name}` ({keys})" if keys else f"`{name}`")
    return ", ".join(words)


def _inner_object(schema: Schema) -> Schema:
    """The object in an array, or in one that may be null."""
    choices = schema.get("anyOf")
    items = schema.get("items")
    if isinstance(choices, list):
        return _inner_object(choices[0])
    return _inner_object(items) if isinstance(items, dict) else schema
