"""What this node can give to the next generation of its run: how many ranks, and a port for rank 0."""

import asyncio
import os

import structlog

from protocol.errors import Refused
from protocol.job import Job
from protocol.messages.member import Offer
from protocol.ranks import device_environment
from protocol.text import one_line
from supervisor.runner import devices
from supervisor.runner.ports import Ports
from supervisor.shell.clock import boot_s
from supervisor.shell.devices import count_ranks
from supervisor.shell.open_files import check_open_files

log = structlog.get_logger()


class Offers:
    """Looks up what the node can give; ranks are counted once, since nothing of that changes under a runner."""

    def __init__(self, job: Job, node: str) -> None:
        self._job = job
        self._node = node
        self._counted: tuple[int, str] | None = None
        self._ports = Ports(job.spec.rendezvous.master_port, node)

    async def look_up(self, host: str, last_port: int | None) -> Offer:
        """The offer as of now; in a thread, for a driver may take its time. `last_port` is the last generation's."""
        try:
            if self._counted is None:
                self._counted = await asyncio.to_thread(self._count)
            port, waits_for = await asyncio.to_thread(self._ports.find, host, last_port, boot_s())
        except Refused as exc:
            return Offer(slots=0, address=host, port=0, problem=one_line(f"{exc}; {exc.hint}"))
        ranks, note = self._counted
        return Offer(slots=ranks, address=host, port=port, waits_for=one_line(waits_for), note=one_line(note))

    def _count(self) -> tuple[int, str]:
        """The ranks, and what is worth telling of how they were counted. Raises Refused where they cannot run here."""
        spec, environ = self._job.spec, device_environment(self._job, os.environb)
        wanted = spec.topology.nproc_per_node
        ranks, how = count_ranks(wanted, environ)
        log.info("ranks_counted", ranks=ranks, how=how)
        check_open_files(ranks)
        if spec.devices.visibility == "virtual":
            devices.virtual_device(ranks - 1, environ)
        if isinstance(wanted, int):
            return ranks, devices.too_few(wanted, environ)
        return ranks, f'{ranks} rank{"s" if ranks > 1 else ""} by nproc_per_node = "{wanted}": {how}'
