"""Which file is executed for a program's name, by the worker's own PATH and folder."""

import os

NOT_EXECUTABLE = "program is not executable (chmod +x)"


class NoProgram(Exception):
    """There is no such program: `path` is what was looked for, or is no program; `reason` says which."""

    def __init__(self, path: bytes, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{os.fsdecode(path)}: {reason}")


def find_program(name: bytes, search: bytes, folder: bytes) -> bytes:
    """`name` as execve(2) is to get it: as it is with a slash in it, else searched in `search`, which is a PATH.

    What is relative starts at the worker's working directory, `folder`, since that is entered first. Raises NoProgram
    where no file in PATH will do; one that is named with a slash is not looked at.
    """
    if not name:
        raise NoProgram(b"", "no program is named")
    if b"/" in name:
        return name
    denied = b""
    for candidate in (os.path.join(part or b".", name) for part in search.split(b":")):
        place = os.path.join(folder, candidate)
        if os.path.isfile(place):
            if os.access(place, os.X_OK):
                return candidate
            denied = denied or place
    if denied:
        raise NoProgram(denied, NOT_EXECUTABLE)
    raise NoProgram(name, f"program not found on the worker's PATH ({os.fsdecode(search)})")
