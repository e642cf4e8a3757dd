"""What it takes to move the coordinator here: whom the others know as host, that it is gone, and its journal."""

import asyncio
import contextlib
import math
from pathlib import Path
from typing import NoReturn

import structlog

from protocol.errors import Refused
from protocol.ids import may_be_epoch
from protocol.messages.fleet import KnownHost
from protocol.text import host_port, some_of
from supervisor.daemon.journal import Journal
from supervisor.daemon.node import Node
from supervisor.daemon.probe import Place, Prober, Round, Voice
from supervisor.shell.clock import boot_s
from supervisor.shell.config import Config
from supervisor.shell.files import read_small

log = structlog.get_logger()

ASK_LIMIT_S = 2.0
"""How long the other nodes may take to say whom they know as host."""

ASK_AGAIN_S = 0.5

LIVES_HINT = "stop its supd, and begin again; --old-is-dead where it is certainly off, whatever others believe"

SILENT_HINT = "begin again once they are reached; --old-is-dead where the old host is certainly off, whatever happens"

SLACK_S = 1.0
"""A host that was heard so shortly after we began to ask may have ended just then."""

MOVED = "moved"
"""The folder, in the state folder, for the journal of the node that has hosted until now."""

PLACE_MAX_BYTES = 300


class Others:
    """The other nodes of `[fleet] join`, and what they, and runners of this node, say of hosts other than this one."""

    def __init__(self, config: Config, prober: Prober, node: Node) -> None:
        self._config = config
        self._prober = prober
        self._node = node
        self._listed = tuple((entry.host, entry.port) for entry in config.join)
        self._last: Place | None = None  # where this node has found the host last
        self._has_read = False

    async def rival(self, own_epoch: int, heard_within_s: float = float("inf")) -> KnownHost | None:
        """The host that somebody has heard within that time and that comes before this node; None: there is none. The
        disk is waited for at the first question alone.

        Of two that have begun the same epoch it is the one whose name comes later.
        """
        voices = self._of_others(await self._ask(own_epoch))
        hosts = [voice.host for voice in voices if voice.host.heard_s <= heard_within_s]
        best = max(hosts, key=_rank, default=None)
        return best if best is not None and _rank(best) > (own_epoch, self._config.node) else None

    async def highest_epoch(self, own_epoch: int) -> int:
        """That anybody tells of; 0: nobody does."""
        return max([voice.host.epoch for voice in self._of_others(await self._ask(own_epoch))], default=0)

    async def see_that_the_host_is_gone(self, own_epoch: int, ttl_s: float, place: Place | None) -> int:
        """Wait until nobody has heard it for `ttl_s`. Returns the highest epoch that was told of, 0 for none; raises
        Refused where it lives, and where nobody can say.

        Runners of this node that have no connection to it find this supd at `place` meanwhile, and say when it has
        answered them by way of others. None: the host was this node itself, and silence leaves it that.
        """
        if place is None or not self._node.active_runs():
            return await self._watch(own_epoch, ttl_s, is_news=place is not None)
        await self._read_last()  # before it is another one
        await self._node.publish_as_host(*place)
        try:
            return await self._watch(own_epoch, ttl_s, is_news=True)
        except (Refused, asyncio.CancelledError):
            if self._last is not None:
                with contextlib.suppress(OSError):  # as this node joins, it is published again
                    await self._node.publish(*self._last)
            raise

    async def _watch(self, own_epoch: int, ttl_s: float, *, is_news: bool) -> int:
        began_s, epoch = boot_s(), 0
        while True:
            said = await self._ask(own_epoch)
            voices, answered_s = self._of_others(said), -math.inf
            for voice in voices:
                if voice.node == voice.host.node:
                    _refuse(voice.host, "it answers as host")
                if voice.heard_at_s > began_s + SLACK_S:
                    _refuse(voice.host, f"{voice.node} has heard it {voice.host.heard_s:.1f} s ago")
                epoch = max(epoch, voice.host.epoch)
            if is_news and may_be_epoch(self._node.answered[0], own_epoch):
                answered_epoch, answered_s = self._node.answered
                epoch = max(epoch, answered_epoch)
                if answered_s > began_s + SLACK_S:
                    raise Refused("F310", "the old host lives: it answers runners of this node", hint=LIVES_HINT)
            now_s = boot_s()
            was_asked = not self._node.active_runs() or now_s > began_s + ttl_s  # its runners have had the time
            is_quiet = now_s > max([answered_s, *(voice.heard_at_s for voice in voices)]) + ttl_s
            silent = [] if said.voices or not is_news else self._silent(said)
            if is_quiet and not silent and (was_asked or not is_news):
                return epoch
            if silent and now_s > began_s + ttl_s:
                names = some_of([host_port(*silent_place) for silent_place in silent])
                message = f"nobody can say whether the old host is gone: no word of a host from {names}"
                raise Refused("F310", message, hint=SILENT_HINT)
            await asyncio.sleep(ASK_AGAIN_S)

    async def _ask(self, own_epoch: int) -> Round:
        """The nodes of `join`, and whoever is where this node has found the host last; within ASK_LIMIT_S. Who tells of
        an epoch that there cannot be is not heard."""
        await self._read_last()
        said = await self._prober.ask_all(self._places(), ASK_LIMIT_S)
        own = self._config.node
        heard = [v for v in said.voices if v.node != own and may_be_epoch(v.host.epoch, own_epoch)]
        return Round(heard, said.found)

    async def _read_last(self) -> None:
        if self._has_read:
            return
        last = await asyncio.to_thread(read_small, self._config.state_dir / "coordinator", PLACE_MAX_BYTES)
        host, _, port = (last or b"").decode(errors="replace").strip().rpartition(":")
        self._last = (host, int(port)) if host and port.isdecimal() else None
        self._has_read = True

    def _places(self) -> tuple[Place, ...]:
        return self._listed if self._last is None else (*self._listed, self._last)

    def _of_others(self, said: Round) -> list[Voice]:
        """What was said of hosts other than this node."""
        return [voice for voice in said.voices if voice.host.node != self._config.node]

    def _silent(self, said: Round) -> list[Place]:
        """Where a host may be of which nothing is known: neither this node itself, nor a machine without a supd."""
        return [place for place in self._places() if said.found.get(place) not in ("", self._config.node)]


async def take_over_journal(journal: Journal, state_dir: Path) -> None:
    """Take in what the operator has put into the folder MOVED, if anything; what was taken, and what it replaces, is
    kept under other names. Where nothing is there, what this node has of the time before another one hosted is set
    aside: runs that were ended there since must not begin anew. Raises Refused."""
    folder = state_dir / MOVED
    kept = state_dir / f"journal-{await journal.epoch()}.db"
    if not await asyncio.to_thread((folder / "journal.db").exists):
        if await journal.is_told_to_host() is False:
            await journal.set_aside(kept)
        return
    runs = await journal.take_over(folder / "journal.db", kept)
    taken = state_dir / f"{MOVED}-{await journal.epoch()}"
    try:
        await asyncio.to_thread(folder.rename, taken)
    except OSError as exc:
        hint = "rename it yourself, and begin again: it must not be taken in twice"
        raise Refused("F034", f"{folder} cannot be renamed to {taken.name}: {exc}", hint=hint) from exc
    log.info("journal_taken_over", runs=runs, journal=str(taken))


def _rank(host: KnownHost) -> tuple[int, str]:
    return host.epoch, host.node


def _refuse(host: KnownHost, why: str) -> NoReturn:
    message = f"{host.node} ({host_port(host.address, host.port)}) hosts the coordinator, and lives: {why}"
    raise Refused("F310", message, hint=LIVES_HINT)
