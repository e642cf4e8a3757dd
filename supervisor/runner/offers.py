"""What this node can give to the next generation of its run: how many ranks, and a port for rank 0."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog

from protocol.backend import NCCL, check_backend
from protocol.errors import Refused
from protocol.job import Job
from protocol.messages.member import Offer
from protocol.ranks import device_environment
from protocol.text import one_line
from supervisor.runner import devices
from supervisor.runner.ports import Ports
from supervisor.shell.clock import boot_s
from supervisor.shell.devices import CUDA_VARIABLE, accelerators, count_ranks
from supervisor.shell.open_files import check_open_files
from supervisor.shell.port_hold import PortHold

if TYPE_CHECKING:
    from supervisor.runner.digest import Digests

log = structlog.get_logger()


class Offers:
    """Looks up what the node can give; ranks are counted once, since nothing of that changes under a runner.

    `address` is by which other nodes reach this one; `listen()` gives the port on which the runner listens for others,
    or raises Refused.
    """

    def __init__(self, job: Job, node: str, address: str, listen: Callable[[], Awaitable[int]]) -> None:
        self._job = job
        self._address = address
        self._listen = listen
        self._is_single = job.spec.topology.nnodes[1] == 1  # there never is another node
        self._counted: tuple[int, str] | None = None
        self._hold = PortHold(job.run)
        self._ports = Ports(job.spec.rendezvous.master_port, node, self._hold)
        self._digests: Digests | None = None

    async def look_up(self, last_port: int | None) -> Offer:
        """The offer as of now; in a thread, for a driver or a disk may take its time.

        `last_port` is the last generation's.
        """
        try:
            witness_port = 0 if self._is_single else await self._listen()
        except Refused as exc:
            return self._problem(exc)
        return await asyncio.to_thread(self._look_up, last_port, witness_port)

    def close(self) -> None:
        """Hold no port any more."""
        self._hold.close()

    def _look_up(self, last_port: int | None, witness_port: int) -> Offer:
        try:
            if self._counted is None:
                self._counted = self._count()
            digest = self._digest()
            port, waits_for = self._ports.find(self._address, last_port, boot_s())
        except Refused as exc:
            return self._problem(exc)
        ranks, note = self._counted
        return Offer(
            slots=ranks,
            address=self._address,
            port=port,
            waits_for=one_line(waits_for),
            note=one_line(note),
            digest=digest,
            witness_port=witness_port,
            knows_devices=True,
        )

    def _problem(self, exc: Refused) -> Offer:
        problem = one_line(f"{exc}; {exc.hint}")
        return Offer(slots=0, address=self._address, port=0, problem=problem, knows_devices=True)

    def _digest(self) -> dict[str, str]:
        """What nodes have to have in common, where there may be several."""
        if self._is_single:
            return {}
        if self._digests is None:
            from supervisor.runner.digest import Digests  # which takes long to load, and few runs need

            self._digests = Digests(self._job)
        return self._digests.look()

    def _count(self) -> tuple[int, str]:
        """The ranks, and what is worth telling of how they were counted. Raises Refused where they cannot run here."""
        spec, environ = self._job.spec, device_environment(self._job, os.environb)
        if CUDA_VARIABLE in os.environ and CUDA_VARIABLE not in spec.run.env:
            environ[CUDA_VARIABLE] = os.environ[CUDA_VARIABLE]  # supd's own: what runs are given is of these
        wanted = spec.topology.nproc_per_node
        ranks, how = count_ranks(wanted, environ)
        log.info("ranks_counted", ranks=ranks, how=how)
        check_open_files(ranks)
        if spec.run.backend == NCCL:
            gpus, how_gpus = accelerators(environ)
            check_backend(NCCL, ranks, len(gpus), how_gpus)
        if spec.devices.visibility == "virtual":
            devices.virtual_device(ranks - 1, environ)
        if spec.devices.numa_binding != "none":
            from supervisor.shell.numa import cpus_of_ranks, gpus_seen  # few jobs need it

            cpus_of_ranks(spec.devices.numa_binding, gpus_seen(environ), ranks)
        if isinstance(wanted, int):
            return ranks, devices.too_few(wanted, environ)
        return ranks, f'{ranks} rank{"s" if ranks > 1 else ""} by nproc_per_node = "{wanted}": {how}'
