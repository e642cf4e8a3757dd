"""What --json prints, held against the schemas that are shipped."""

import json
from collections.abc import Iterable
from typing import Any

import jsonschema

from supervisor.cli.documents import DOCUMENTS, json_schema


def closed(schema: Any) -> Any:
    """The same schema with no other keys than those it knows: only readers must expect more."""
    match schema:
        case {"properties": properties}:
            inner = {name: closed(value) for name, value in properties.items()}
            return {**schema, "properties": inner, "additionalProperties": False}
        case dict():
            return {name: closed(value) for name, value in schema.items()}
        case list():
            return [closed(value) for value in schema]
        case _:
            return schema


VALIDATORS = {name: jsonschema.Draft202012Validator(closed(json_schema(name))) for name in DOCUMENTS}


def problems(name: str, text: str) -> list[str]:
    """What is wrong with a document, or with a line, of this name."""
    return [f"{error.json_path}: {error.message}" for error in VALIDATORS[name].iter_errors(json.loads(text))]


def problems_of_all(name: str, texts: Iterable[str]) -> list[str]:
    """The same for several lines, of which there must be some."""
    lines = [*texts]
    assert lines
    return [problem for line in lines for problem in problems(name, line)]
