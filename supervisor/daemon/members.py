"""The runners that talk to the coordinator: one connection each."""

from dataclasses import dataclass

import structlog

from protocol.errors import RemoteProtocolError
from protocol.messages import encode
from protocol.messages.member import Hello, Renewal, Welcome, decode_to_coordinator
from protocol.versions import VERSIONS, agreed
from supervisor.daemon.door import Door
from supervisor.daemon.jobs import Jobs, Run
from supervisor.shell.channel import Channel

log = structlog.get_logger()


@dataclass
class _Guest:
    """A connection whose runner was welcomed."""

    run: Run
    node: str
    incarnation: str


class Members:
    """Hears runners. Who one is comes from its first message and stays so for as long as it is connected."""

    def __init__(self, jobs: Jobs, door: Door) -> None:
        self._jobs = jobs
        self._door = door
        self._guests: dict[Channel, _Guest] = {}

    def take(self, channel: Channel, hello: Hello) -> None:
        """A connection that began with `hello`."""
        version = agreed(hello.versions)
        run = self._jobs.runs.get(hello.run)
        if version is None:
            self._door.reject(channel, f"this supd speaks versions {VERSIONS}, the runner {hello.versions}")
        elif run is None:
            self._door.reject(channel, f"run {hello.run} is not known here")
        else:
            self._guests[channel] = _Guest(run, hello.node, hello.incarnation)
            channel.hand_over(self._on_frame, self._on_closed)
            channel.send(encode(Welcome(version=version, epoch=self._jobs.epoch, job=run.job)))
            self._jobs.on_runner_linked(run, hello.incarnation, channel)
            log.info("runner_linked", run=hello.run, node=hello.node, incarnation=hello.incarnation)

    def _on_frame(self, channel: Channel, payload: bytes) -> None:
        guest = self._guests[channel]
        match decode_to_coordinator(payload):
            case Hello():
                raise RemoteProtocolError("a second hello")
            case Renewal() as renewal:
                self._jobs.on_runner_heard(guest.run, guest.node, guest.incarnation, renewal)

    def _on_closed(self, channel: Channel) -> None:
        guest = self._guests.pop(channel)
        self._jobs.on_runner_unlinked(guest.run, guest.node, guest.incarnation, channel)
