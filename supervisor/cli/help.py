"""Explain an error code, a key of job.toml or supd.toml, or a command; or print a JSON Schema.

Needs no supd. TOPIC is a CODE like J204, a COMMAND, `job.toml`, `supd.toml` or `json`. The two files take a KEY: a key
like stop.grace, or a table like stop. `json` takes a NAME: a document of --json, or one of the two files.
"""

import argparse
import re
from collections.abc import Iterable
from typing import NoReturn

from protocol.exit_code import ExitCode
from supervisor.cli.arguments import UsageError
from supervisor.cli.context import Context

FILES = ("job.toml", "supd.toml")
SCHEMAS = "json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`supctl help`'s own arguments."""
    parser.add_argument("topic", metavar="TOPIC", nargs="?", default="", help="what to explain; default: the commands")
    parser.add_argument("key", metavar="KEY", nargs="?", default="", help="a key, a table; behind json a name")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Explain one topic."""
    topic, key = arguments.topic, arguments.key
    if topic in FILES:
        text = _of_file(topic, key)
    elif topic == SCHEMAS:
        text = _schema(key)
    elif re.fullmatch("[A-Za-z][0-9]{3}", topic):
        text = _of_code(topic.upper(), key)
    elif not key and not _is_command(topic) and any(_homes(file, topic) for file in FILES):
        text = "\n\n".join(_of_file(file, topic) for file in FILES if _homes(file, topic))
    else:
        return _of_command(topic, key)
    context.screen.print(text)
    return ExitCode.OK


def _of_file(topic: str, key: str) -> str:
    from supervisor.cli import reference

    file = reference.FILES[topic]
    key = key.strip("[]")
    if not key:
        return reference.overview(file)
    if key in file.schema.tables:
        return reference.table_text(file, key)
    homes = _homes(topic, key)
    if not homes:
        known = reference.key_paths(file.schema)
        _unknown(f"{topic} has no key {key!r}", key, known, f"supctl help {topic} {{}}", f"supctl help {topic}")
    return "\n\n".join(reference.key_text(file, home) for home in homes)


def _homes(topic: str, key: str) -> list[str]:
    """The keys and tables of a file that a word means."""
    from supervisor.cli import reference

    known = [*reference.key_paths(reference.FILES[topic].schema)]
    key = key.strip("[]")
    return [key] if key in known else [path for path in known if path.rpartition(".")[2] == key]


def _schema(name: str) -> str:
    from supervisor.cli.documents import DOCUMENTS, json_schema
    from supervisor.cli.json_fields import as_json
    from supervisor.cli.reference import FILES as files
    from supervisor.cli.reference import editor_schema

    if not name:
        rows = [f"  {name:<10} {document.made_by}" for name, document in DOCUMENTS.items()]
        rows += [f"  {name:<10} the file, for editors" for name in files]
        return "\n".join([*rows, "", "supctl help json NAME prints one's JSON Schema"])
    if name in files:
        return as_json(editor_schema(files[name]))
    if name not in DOCUMENTS:
        _unknown(f"no document {name!r}", name, [*DOCUMENTS, *files], "supctl help json {}", "supctl help json")
    return as_json(json_schema(name))


def _of_code(code: str, key: str) -> str:
    from supervisor.cli.codes import CODES

    if key:
        raise UsageError(f"{code} has no keys", f"supctl help {code}")
    if code not in CODES:
        _unknown(f"no error has the code {code}", code, CODES, "supctl help {}", "see docs/error-codes.md")
    entry = CODES[code]
    lines = [f"{code}: {entry.meaning}", f"  → {entry.mend}"]
    for word, example in (("wrong", entry.wrong), ("right", entry.right)):
        if example:
            lines += ["", f"  {word}:", *(f"      {line}".rstrip() for line in example.splitlines())]
    return "\n".join(lines)


def _of_command(topic: str, key: str) -> int:
    from supervisor.cli import app

    if not _is_command(topic):
        known = [*app.COMMANDS, *app.ALIASES, *FILES, SCHEMAS]
        _unknown(f"no help on {topic!r}", topic, known, "supctl help {}", "supctl help")
    if key:
        raise UsageError(f"`{topic}` has no keys", f"supctl help {topic}")
    return app.run([topic, "--help"] if topic else ["--help"])


def _is_command(topic: str) -> bool:
    from supervisor.cli import app

    return not topic or topic in app.COMMANDS or topic in app.ALIASES


def _unknown(message: str, word: str, known: Iterable[str], form: str, hint: str) -> NoReturn:
    """Say so, and name the near one in the `form` of a call that explains it."""
    from protocol.tables import did_you_mean  # only where something is wrong

    near = did_you_mean(word, known, f"`{form}`")
    raise UsageError(message + (f"; {near}" if near else ""), hint)
