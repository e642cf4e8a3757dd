"""`dataclass`, `field` and `replace` for what stays in a process: the events and effects of machines, and all else.

There are so many of them that the standard library's, which compiles six methods for each, takes a third of the time in
which a process of ours starts. These are msgspec's structs, which compile nothing: made, compared, matched, changed and
shown alike.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast, dataclass_transform

import msgspec
from msgspec import field as field

T = TypeVar("T")


class InMemory(msgspec.Struct):
    """What they all are: unlike other structs they go over no wire, and to no disk."""


_NOT_PASSED_ON = ("__dict__", "__weakref__", "__annotations__")


@dataclass_transform(field_specifiers=(field,))
def dataclass(*, frozen: bool, eq: bool = True, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """As `dataclasses.dataclass`, for a class without bases."""

    def made(plain: type[T]) -> type[T]:
        fields = plain.__annotations__ if "__annotations__" in plain.__dict__ else {}
        described = [(name, Any, plain.__dict__[name]) if name in plain.__dict__ else (name, Any) for name in fields]
        namespace = {
            name: value for name, value in plain.__dict__.items() if name not in fields and name not in _NOT_PASSED_ON
        }
        struct = msgspec.defstruct(
            plain.__name__,
            described,
            namespace=namespace,
            module=plain.__module__,
            bases=(InMemory,),
            frozen=frozen,
            eq=eq,
            kw_only=kw_only,
        )
        return cast("type[T]", struct)

    return made


def replace(thing: T, **changes: Any) -> T:
    """As `dataclasses.replace`."""
    return cast("T", msgspec.structs.replace(cast("msgspec.Struct", thing), **changes))
