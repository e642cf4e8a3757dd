"""Where a run's output lies on a node.

    <logs>/<run>/gen-0002/rank-00011.err                          the newest bytes of the stream, as written
    <logs>/<run>/gen-0002/rank-00011.err.000000209715200          rotated: its first byte is that one of the stream
    <logs>/<run>/gen-0002/rank-00011.err.000000000000000.gz       the same, gzipped
    <logs>/<run>/gen-0002/rank-00011.err.times, … .000….times     when the bytes were read (supervisor/logs/times.py)
    <logs>/<run>/latest -> gen-0002

A stream is one sequence of bytes, whatever files it lies in; its *offset* counts from its first byte.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

STREAMS = ("out", "err")

_GENERATION = re.compile(r"gen-(\d{4,})")
_STREAM = re.compile(r"rank-(\d{5,})\.(out|err)(?:\.\d{15}(?:\.gz)?)?")
_PART = re.compile(r"\.(\d{15})(\.gz)?")


class Part(NamedTuple):
    """A rotated file of a stream; in order of the stream."""

    start: int  # the offset of its first byte
    path: Path
    is_gz: bool


def generation_dir(logs_dir: Path, generation: int) -> Path:
    """The folder of one generation; `logs_dir` is the run's."""
    return logs_dir / f"gen-{generation:04d}"


def stream_path(logs_dir: Path, generation: int, rank: int, stream: str) -> Path:
    """The file with the newest bytes of one rank's stream, `out` or `err`."""
    return generation_dir(logs_dir, generation) / f"rank-{rank:05d}.{stream}"


def part_path(live: Path, start: int) -> Path:
    """The rotated file of the stream at `live` that begins with the byte at `start`, before it is gzipped."""
    return live.with_name(f"{live.name}.{start:015d}")


def gz_path(part: Path) -> Path:
    """Where a rotated file lies once it is gzipped."""
    return part.with_name(f"{part.name}.gz")


def generations(logs_dir: Path) -> list[int]:
    """The generations that have a folder, in order; none if the run has written nothing here yet."""
    return sorted(int(found[1]) for name in _names(logs_dir) if (found := _GENERATION.fullmatch(name)))


def streams(logs_dir: Path, generation: int) -> list[tuple[int, str]]:
    """The (rank, stream) pairs that have files: by rank, `out` before `err`.

    One that is rotated just now has none at `stream_path` for a moment.
    """
    names = _names(generation_dir(logs_dir, generation))
    pairs = {(int(found[1]), found[2]) for name in names if (found := _STREAM.fullmatch(name))}
    return sorted(pairs, key=lambda pair: (pair[0], STREAMS.index(pair[1])))


def parts(live: Path) -> list[Part]:
    """The rotated files of the stream at `live`, in order; one that is there plain and gzipped counts as plain."""
    found: dict[int, Part] = {}
    for name in _names(live.parent):
        match = _PART.fullmatch(name, len(live.name)) if name.startswith(live.name) else None
        if match is None:
            continue
        part = Part(int(match[1]), live.with_name(name), match[2] is not None)
        if part.start not in found or not part.is_gz:
            found[part.start] = part
    return sorted(found.values())


def make_generation_dir(logs_dir: Path, generation: int, umask: int = 0o077) -> None:
    """Make the folder, and the run's, and let `latest` point at it unless it points at a newer one."""
    folder = generation_dir(logs_dir, generation)
    if not folder.is_dir():
        is_first = not generations(logs_dir)
        folder.mkdir(0o700, parents=True, exist_ok=True)
        for made in (logs_dir, folder) if is_first else (folder,):
            made.chmod(0o777 & ~umask)  # the umask of this process is another one
    latest = logs_dir / "latest"
    with contextlib.suppress(OSError):  # not every file system has symbolic links; the output matters more
        if not latest.is_symlink() or _number(os.readlink(latest)) < generation:
            link = logs_dir / ".latest"
            link.unlink(missing_ok=True)
            link.symlink_to(folder.name)
            link.replace(latest)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _number(name: str) -> int:
    found = _GENERATION.fullmatch(name)
    return int(found[1]) if found else -1
