"""Who may host the coordinator, from which journal, and until when: all that a leader election would answer instead.

Here it is the operator's word: `[fleet] join`, until `supd run --coordinator` has named another node of it. Whoever
hears of a host with a higher epoch follows it. What it has come to is in the journal of the state folder.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from protocol.dataclass import dataclass
from protocol.messages.fleet import KnownHost
from protocol.text import host_port
from supervisor.daemon.hosting import Hosting, Hosts, Joins, not_in_join
from supervisor.daemon.journal import Journal
from supervisor.daemon.moving import Others, take_over_journal
from supervisor.shell.config import Config

log = structlog.get_logger()

LOOK_S = 1.0
"""Between two looks of a host at whether another one has begun. With ASK_LIMIT_S it is well below a lease: who is
answered here until then must find the other one before that one may take it for lost."""


class Leadership(Protocol):
    """What the rest of supd asks."""

    journal: Journal  # what a coordinator must not forget

    async def settled(self, place: tuple[str, int]) -> Hosts | Joins:
        """Wait until it is known whether this node leads; runners of it find this supd at `place`. Raises Refused where
        it is to, and must not."""

    async def begin(self) -> int:
        """The epoch to lead with, once `settled` has said so; on disk before."""

    async def is_over(self, epoch: int) -> bool:
        """Look now whether another node leads, this one being in that epoch. No disk of this node is waited for."""

    async def ended(self, epoch: Callable[[], int]) -> None:
        """Wait until another node leads, looking as `is_over`."""


@dataclass(frozen=True)
class Word:
    """What the operator has said as this supd was started."""

    hosts: bool = False  # --coordinator
    old_is_dead: bool = False


class OperatorsWord:
    """Leadership by state folder, `join` and the operator's word."""

    def __init__(self, config: Config, journal: Journal, hosting: Hosting, others: Others, word: Word) -> None:
        self.journal = journal
        self._config = config
        self._hosting = hosting
        self._others = others
        self._word = word

    async def settled(self, place: tuple[str, int]) -> Hosts | Joins:
        if self._word.hosts and not self._config.join:
            raise not_in_join(self._config)
        decision = await self._hosting.settled()
        if isinstance(decision, Joins) or not self._config.join:
            return decision
        if self._word.hosts:
            known = await self.journal.epoch()
            if self._word.old_is_dead:
                epoch = await self._others.highest_epoch(known)
            else:
                is_move = not await self.journal.is_told_to_host()
                ttl_s = self._config.timing.ttl_s
                epoch = await self._others.see_that_the_host_is_gone(known, ttl_s, place if is_move else None)
            await take_over_journal(self.journal, self._config.state_dir)
            await self.journal.tell_to_host(True, epoch)
        elif (rival := await self._others.rival(await self.journal.epoch())) is not None:
            await self._follow(rival)
            return await self._hosting.settled()
        return decision

    async def begin(self) -> int:
        return await self.journal.next_epoch()

    async def is_over(self, epoch: int) -> bool:
        rival = await self._others.rival(epoch, self._config.timing.ttl_s)
        if rival is not None:
            await self._follow(rival)
        return rival is not None

    async def ended(self, epoch: Callable[[], int]) -> None:
        if not self._config.join:
            await asyncio.Event().wait()
        while not await self.is_over(epoch()):  # noqa: ASYNC110  # nobody rings where it is
            await asyncio.sleep(LOOK_S)

    async def _follow(self, rival: KnownHost) -> None:
        hint = "the journal here is kept as it is; `supd run --coordinator` brings the coordinator back to this node"
        place = host_port(rival.address, rival.port)
        log.warning("coordinator_moved", host=rival.node, address=place, epoch=rival.epoch, hint=hint)
        await self.journal.tell_to_host(False, rival.epoch)
        self._hosting.told = False
