"""What the source says of its structs and enums: types with their limits, defaults, and the comment of each field."""

import ast
import inspect
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import ModuleType
from typing import Any

import msgspec
from msgspec import inspect as kinds

Shape = type[Any]
"""A class that has a table of its own: a struct, an enum, a named tuple."""


@dataclass(frozen=True)
class Row:
    """One field of a struct, or one word of an enum."""

    name: str
    type: str
    default: str  # "" where there is none, so that the field must be there
    meaning: str


# --- the words ---------------------------------------------------------------------------------------------------


def about(shape: Shape) -> str:
    """The docstring of a class, on one line."""
    return " ".join((inspect.getdoc(shape) or "").split())


@cache
def comments(module: ModuleType) -> dict[int, str]:
    """The comments of a module by line; those that only begin a section are left out."""
    source = inspect.getsource(module)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    return {line: text for line, text in found.items() if not text.startswith("---")}


def field_words(shape: Shape) -> dict[str, str]:
    """The comment of each field of a class: what stands behind it, and goes on in lines of its own."""
    module = inspect.getmodule(shape)
    assert module is not None
    said = comments(module)
    tree = ast.parse(inspect.getsource(module))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == shape.__name__)
    words = {}
    for node in body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                assert node.end_lineno is not None
                lines = list(range(node.lineno, node.end_lineno + 1))
                taken = {line for other in body if other is not node for line in _lines(other)}
                while lines[-1] in said and lines[-1] + 1 in said and lines[-1] + 1 not in taken:
                    lines.append(lines[-1] + 1)
                words[name] = " ".join(said[line] for line in lines if line in said)
            case _:
                pass
    return words


def _lines(node: ast.stmt) -> range:
    assert node.end_lineno is not None
    return range(node.lineno, node.end_lineno + 1)


# --- types -------------------------------------------------------------------------------------------------------


def rows(shape: Shape) -> list[Row]:
    """Every field of a struct or named tuple with its type, or every word of an enum."""
    words = field_words(shape)
    if issubclass(shape, Enum):
        return [Row(str(member.value), "", "", words[member.name]) for member in shape]
    info = kinds.type_info(shape)
    assert isinstance(info, kinds.StructType | kinds.NamedTupleType), shape
    return [Row(f.encode_name, type_text(f.type), _default(f), words[f.name]) for f in info.fields]


def _default(field: kinds.Field) -> str:
    if field.required:
        return ""
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, msgspec.Struct) and value == type(value)():
        return "{}"  # all of its own defaults
    return msgspec.json.encode(value).decode()


def type_text(kind: kinds.Type) -> str:
    """A type in the words of the page's "Frames"; a class is a link to its own table."""
    match kind:
        case kinds.IntType():
            return "int" + _bounds(kind.ge, kind.le)
        case kinds.FloatType():
            return "float" + _bounds(kind.ge, kind.le)
        case kinds.StrType():
            form = f" of the form `{kind.pattern}`" if kind.pattern else ""
            return "text" + _lengths(kind.min_length, kind.max_length, "characters") + form
        case kinds.BytesType():
            return "bytes" + _lengths(kind.min_length, kind.max_length, "bytes")
        case kinds.BoolType():
            return "bool"
        case kinds.NoneType():
            return "null"
        case kinds.VarTupleType():
            return f"array of {_inner(kind.item_type)}" + _lengths(kind.min_length, kind.max_length, "items")
        case kinds.TupleType():
            return f"[{', '.join(map(type_text, kind.item_types))}]"
        case kinds.DictType():
            of = f"map of {type_text(kind.key_type)} to {_inner(kind.value_type)}"
            return of + _lengths(kind.min_length, kind.max_length, "entries")
        case kinds.UnionType():
            return " or ".join(map(type_text, sorted(kind.types, key=lambda t: isinstance(t, kinds.NoneType))))
        case kinds.StructType() | kinds.EnumType() | kinds.NamedTupleType():
            return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
        case _:
            raise AssertionError(f"no words for {kind}")


def _inner(kind: kinds.Type) -> str:
    """A type inside of another."""
    text = type_text(kind)
    return f"({text})" if isinstance(kind, kinds.UnionType) else text


def _bounds(least: float | None, most: float | None) -> str:
    match least, most:
        case None, None:
            return ""
        case least, None:
            return f" ≥ {least:.15g}"
        case None, most:
            return f" ≤ {most:.15g}"
        case _:
            return f" {least:.15g} to {most:.15g}"


def _lengths(least: int | None, most: int | None, of: str) -> str:
    """Of a text, an array or a map; says nothing where it may be as long as it likes."""
    limits = _bounds(least, most)
    return f" ({limits.strip()} {of})" if limits else ""


def parts(kind: kinds.Type) -> Iterator[Shape]:
    """The classes that a type mentions, but not those that they mention in turn."""
    match kind:
        case kinds.StructType() | kinds.EnumType() | kinds.NamedTupleType():
            yield kind.cls
        case kinds.VarTupleType():
            yield from parts(kind.item_type)
        case kinds.TupleType():
            for item in kind.item_types:
                yield from parts(item)
        case kinds.DictType():
            yield from parts(kind.value_type)
        case kinds.UnionType():
            for choice in kind.types:
                yield from parts(choice)
        case _:
            pass


def fields_parts(shape: Shape) -> Iterator[Shape]:
    """The classes that the fields of a struct mention."""
    info = kinds.type_info(shape)
    if isinstance(info, kinds.StructType):
        for field in info.fields:
            yield from parts(field.type)
