"""How one error code is explained; what each means: file_codes.py, codes.py."""

from typing import NamedTuple


class Entry(NamedTuple):
    """One thing that can be wrong. It has two codes where it can be wrong with either file."""

    codes: tuple[str, ...]
    meaning: str
    mend: str
    wrong: str = ""  # an example, as it would stand in a file or a shell
    right: str = ""  # and what mends it


def both(number: int, meaning: str, mend: str, wrong: str = "", right: str = "") -> Entry:
    """What is wrong with either file."""
    return Entry((f"J{number:03}", f"S{number:03}"), meaning, mend, wrong, right)


def one(code: str, meaning: str, mend: str, wrong: str = "", right: str = "") -> Entry:
    """What is wrong with one thing only."""
    return Entry((code,), meaning, mend, wrong, right)
