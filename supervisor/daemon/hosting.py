"""Which node hosts the coordinator, and by which address a node is reached.

The host is the node whose own address comes first in `[fleet] join`, until an operator has moved the coordinator to
another one of that list; a supd without `join` is a fleet of one and hosts itself. Whether an address is our own is
seen on this machine alone, never by connecting: the order in which nodes start decides nothing. A name that cannot be
resolved yet makes us neither host nor not.
"""

import asyncio

import structlog

from protocol.addresses import EVERYWHERE, JoinEntry, is_address, is_loopback, is_same_host
from protocol.dataclass import dataclass
from protocol.errors import About, ConfigInvalid, Problem, Refused
from protocol.exit_code import ExitCode
from supervisor.shell.addresses import interfaces, is_own, own_addresses
from supervisor.shell.config import Config
from supervisor.shell.names import Names
from supervisor.shell.seldom import Seldom
from supervisor.shell.tls import ensure_credential

log = structlog.get_logger()

RETRY_S = 1.0
"""Between two looks at a name that is not known yet."""

NOBODY_HINT = (
    "the host's supd listens on an address of the first entry, or where it was moved to: is it started? "
    "Where it has lost its state folder since it was moved there: supd run --coordinator, once more"
)

RECHECK_S = 5.0
"""Between two looks at whether an address that came late has made this node the host."""


@dataclass(frozen=True)
class Hosts:
    """This node hosts the coordinator."""

    own_address: str  # by which the others know it: from the first entry of join; "": a fleet of one


@dataclass(frozen=True)
class Joins:
    """Another node hosts."""

    entries: tuple[JoinEntry, ...]  # where to ask for it: first the host itself


@dataclass(frozen=True)
class Unknown:
    """It cannot be told yet."""

    why: str


class Hosting:
    """Decides on hosting and addresses by what supd.toml says; raises ConfigInvalid where that fits no interface."""

    def __init__(self, config: Config, names: Names | None = None, *, told: bool | None = None) -> None:
        """`told`: whether this node hosts, where that is not for the first entry of `join` to say any more."""
        self.told = told
        self._config = config
        self._names = names or Names()
        self._seldom = Seldom()
        self._configured = _configured_address(config)
        self._warned: set[str] = set()
        self._was_found = False  # another node has hosted

    # --- who hosts -----------------------------------------------------------------------------------------------

    async def decide(self) -> Hosts | Joins | Unknown:
        """What can be told now; within Names' timeout. Raises Refused where this node is told to host, and is not one
        of `join`."""
        join = self._config.join
        if not join:
            return Hosts("")
        if (embedded := self._config.embedded) is not None and embedded.hosts is not None:  # suprun has found out
            return Hosts(self._configured) if embedded.hosts else Joins(join)
        if self.told is False:
            return Joins(await self._but_our_own(join))
        why = ""
        for entry in join if self.told else join[:1]:
            try:
                own_address = await self._own_address(entry)
            except OSError as exc:
                why = why or str(exc.strerror)
            else:
                if own_address:
                    return Hosts(own_address)
        if why:
            return Unknown(why)
        if self.told:
            raise not_in_join(self._config)
        return Joins(join)

    async def _but_our_own(self, join: tuple[JoinEntry, ...]) -> tuple[JoinEntry, ...]:
        """Without the first entry where that is this node, which does not host any more."""
        try:
            is_own = bool(await self._own_address(join[0]))
        except OSError:
            is_own = False
        return join[1:] if is_own and len(join) > 1 else join

    async def _own_address(self, entry: JoinEntry) -> str:
        """By which the others know this node, where the entry means it; "": it means another one. Raises OSError."""
        if entry.port != self._config.peer[1]:
            return ""
        if is_same_host(entry.host, self._config.advertise):
            return self._config.advertise
        addresses = await self.addresses_of(entry)
        own = await self._own(addresses)
        self._warn_of(entry, addresses, own)
        return _address_for_others(entry.host, own) if own else ""

    async def _own(self, addresses: tuple[str, ...]) -> list[str]:
        """Those on which we listen; raises OSError."""
        host = self._config.peer[0]
        if host in EVERYWHERE:
            return [address for address in addresses if is_own(address)]
        listens_on = await self._names.look_up(host)
        return [address for address in addresses if any(is_same_host(address, own) for own in listens_on)]

    async def settled(self) -> Hosts | Joins:
        """Wait until it can be told, with a line in the log now and then."""
        while isinstance(decision := await self.decide(), Unknown):
            if self._seldom.is_due("unknown"):
                entry = self._config.join[0].text
                log.warning("host_unresolved", join=entry, error=decision.why, hint="it is looked up again and again")
            await asyncio.sleep(RETRY_S)
        return decision

    async def comes_to_host(self) -> Hosts:
        """Wait until this node, which joins, is found to be the host after all; never, once another one has hosted.

        Its address may come after supd, by DHCP, and a name may have led elsewhere for a while.
        """
        while True:
            await asyncio.sleep(RECHECK_S)
            if self._was_found:
                continue
            if isinstance(decision := await self.decide(), Hosts) and not self._was_found:
                log.warning("host_is_here", join=self._config.join[0].text, hint="its address has come late")
                return decision

    def _warn_of(self, entry: JoinEntry, addresses: tuple[str, ...], own: list[str]) -> None:
        """Once, of an entry for the host that does not mean the same node everywhere."""
        if all(map(is_loopback, addresses)):
            if self._is_new("loopback"):
                hint = "every machine takes that for itself: write an address that the other nodes reach"
                log.warning("join_is_loopback", join=entry.text, addresses=list(addresses), hint=hint)
        elif 0 < len(own) < len(addresses) and self._config.peer[0] in EVERYWHERE and self._is_new("shared"):
            hint = "if these are several machines, each takes itself for the host: name one of them"
            log.warning("join_is_shared", join=entry.text, addresses=list(addresses), hint=hint)

    def _is_new(self, warning: str) -> bool:
        is_new = warning not in self._warned
        self._warned.add(warning)
        return is_new

    async def tell_nobody_hosts(self, error: str, hint: str = "") -> None:
        """A line in the log, now and then, while no entry of join leads to the host; `error` is what they say, and
        `hint` that of a host which does not take us in."""
        if not self._seldom.is_due("nobody"):
            return
        first = self._config.join[0]
        try:
            addresses = list(await self.addresses_of(first))
        except OSError as exc:
            addresses = [str(exc.strerror)]
        log.warning(
            "host_missed",
            join=first.text,
            addresses=addresses,
            own_addresses=await asyncio.to_thread(own_addresses),
            error=error,
            hint=hint or NOBODY_HINT,
        )

    def found(self) -> None:
        """The host was reached: if it is missed again, that is told at once."""
        self._was_found = True
        self._seldom.forget("nobody")

    # --- addresses -----------------------------------------------------------------------------------------------

    async def addresses_of(self, entry: JoinEntry) -> tuple[str, ...]:
        """Where to connect to; raises OSError, as `Names.look_up`."""
        return await self._names.look_up(entry.host)

    def local_address(self, to: str) -> tuple[str, int] | None:
        """What a connection to this address is to be bound to; None: the kernel chooses."""
        host = self._config.peer[0]
        is_fit = host not in EVERYWHERE and is_address(host) and (":" in host) == (":" in to)
        return (host, 0) if is_fit else None

    def node_address(self, own_address: str = "", link_side: str = "") -> str:
        """By which address peers reach this node.

        As configured; else, on the host, `Hosts.own_address`, and on others the local side of the link to the host;
        else, for a fleet of one that listens everywhere, 127.0.0.1.
        """
        return self._configured or own_address or link_side or "127.0.0.1"

    # --- the credential ------------------------------------------------------------------------------------------

    async def ensure_credential(self) -> None:
        """See that the fleet's key is there, and make it where this node hosts.

        Raises Refused: where it joins another one, a key of its own would be of no use. Waits until that is known.
        """
        path = self._config.credential
        if not path.exists() and self._config.join and isinstance(await self.settled(), Joins):
            raise Refused(
                "F013",
                f"there is no fleet key at {path}, and this node joins {self._config.join[0].text}",
                hint="copy fleet.pem of the host here, or make one with `supd fleet key new` and copy it to every node",
                exit_code=ExitCode.INVALID,
            )
        await asyncio.to_thread(ensure_credential, path)


def not_in_join(config: Config) -> Refused:
    """Why a node cannot host that the others would not find."""
    listed = ", ".join(entry.text for entry in config.join)
    what = f"is not in `[fleet] join` ({listed})" if listed else "has no `[fleet] join`: it is a fleet of its own"
    hint = "add this node's address and port behind the first entry on every node, and begin again"
    message = f"{config.node} {what}; nobody would find the coordinator here"
    return Refused("F309", message, hint=hint, exit_code=ExitCode.INVALID)


def _configured_address(config: Config) -> str:
    """As supd.toml says; "" where it names none. Raises ConfigInvalid."""
    if not config.interface:
        return config.advertise or ("" if config.peer[0] in EVERYWHERE else config.peer[0])
    addresses = own_addresses(config.interface)
    if not addresses:
        names = interfaces()
        flaw = "has no address" if config.interface in names else "is not an interface of this machine"
        hint = f"it has {', '.join(names)}" if names else "`ip address` lists them"
        about = About(("listen", "interface"))
        problem = Problem("S401", "listen.interface", config.interface, f"`listen.interface` {flaw}", hint, about=about)
        raise ConfigInvalid(config.found.source, config.found.settled([problem]))
    return addresses[0]


def _address_for_others(host: str, own: list[str]) -> str:
    """By which the others know the host, which stands in join as `host` and has these addresses.

    /etc/hosts often gives a machine's own name a loopback address, on that machine alone: then it is the name.
    """
    outer = [address for address in own if not is_loopback(address)]
    return next(iter(outer or own[: host == "localhost"]), host)
