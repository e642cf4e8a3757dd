"""From a selection of output to a stream of chunks: what lies on this node.

Reading the past and following are one mechanism: look at the files, send what they have grown by, in the order of
time. A follower looks when it is told that files have grown, and now and then. That costs a stat a file and only while
somebody follows, and it can miss nothing, on any file system. What is said between the chunks (`LogsSeen`) lets whoever
has several such streams merge them (log_merge.py).
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from protocol.messages.control import LogPlace, LogSelection
from protocol.messages.fleet import LogsNow
from supervisor.daemon.generation_reader import POLL_S, GenerationReader, Marks, Send
from supervisor.daemon.growth import GROWTH
from supervisor.daemon.log_choice import Choice
from supervisor.daemon.slow_disk import ask
from supervisor.logs.paths import generations


async def stream(
    logs_dir: Path,
    selection: LogSelection,
    *,
    first: int,
    follow: bool,
    now: Callable[[], LogsNow],
    bell: asyncio.Event,
    node: str,
    send: Send,
    known: tuple[LogPlace, ...] = (),
) -> tuple[int, ...]:
    """Send the selected output of the run whose logs are in `logs_dir`, by generation, in the order of time.

    Of each stream the order is as written. A line without a time (a file that has no index) goes with the line before
    it in its stream, and where no line has one, rank after rank.

    Unless the selection names a generation, those from `first` on are read. Following, it goes on until
    `now().is_over`, which must not be said before the run's last byte is in its file, and then sends what is left. A
    generation below `now().generation` is taken to be at its end, and with `selection.generation` None later ones are
    followed, too. `bell` rings whenever `now()` has changed; it is rung here as well, so it is this caller's own.

    `tail_lines` and the times hold for each stream that is there at the start; `tail_lines` counts lines of that time.
    With `known`, of those that are among them the rest is sent, and of the others all lines of that time. Every stream
    is read in order and each byte sent once; following, one of which not all is sent begins with an empty chunk that
    says from where on. `send` is awaited, so a slow client slows nobody else. Returns the generations that had output
    here at first, selected or not. Raises OSError if a file can't be read, and Refused where the disk does not answer
    or the selection is not understood.
    """
    choice = Choice(replace(selection, tail_lines=None) if known else selection)
    there = tuple(await ask(logs_dir, generations, logs_dir))
    if choice.selection.tail_lines == 0 and not follow:
        return there
    places = {(place.generation, place.rank, place.stream): place.offset for place in known}
    marks = Marks(send)

    async def read(generation: int, past: LogSelection | None) -> None:
        reader = GenerationReader(logs_dir, generation, choice, past, places, node, marks, bell)
        await reader.run(now, follow=follow)

    chosen = await ask(logs_dir, choice.generations, logs_dir, first)
    for generation in chosen:
        await read(generation, choice.selection)
    if not follow or selection.generation is not None:
        return there
    last = chosen[-1] if chosen else first - 1
    try:
        while True:
            bell.clear()
            seen = now()
            await GROWTH.listen(logs_dir, bell)
            newer = [generation for generation in await ask(logs_dir, generations, logs_dir) if generation > last]
            for last in newer:
                await read(last, None)
            if seen.is_over:
                return there
            if not newer:
                await marks.seen(max(seen.generation, last + 1), max(seen.generation, last) + 1, seen.look)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await bell.wait()
    finally:
        GROWTH.leave(bell)
