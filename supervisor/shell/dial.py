"""Connections to the peers' port of another supd."""

import asyncio
import os
import ssl
from collections.abc import Callable

from supervisor.shell.channel import Channel
from supervisor.shell.names import Names
from supervisor.shell.tls import tls_problem

CONNECT_TIMEOUT_S = 5.0

KEY_HINT = "copy fleet.pem of the host here, and start this supd again"


class Unwelcome(OSError):
    """Somebody answers there, and TLS does not go on: as a rule it has another key."""


LocalAddress = Callable[[str], tuple[str, int] | None]


class Dialer:
    """Opens connections with the fleet's credential. `local_address(to)` is what one is bound to (`Hosting`)."""

    def __init__(self, tls: ssl.SSLContext, local_address: LocalAddress, names: Names | None = None) -> None:
        self._tls = tls
        self._local_address = local_address
        self._names = names or Names()

    async def dial(self, channel: Channel, host: str, port: int, limit_s: float = CONNECT_TIMEOUT_S) -> None:
        """Connect; `channel` hears of it. Raises OSError, which says in words why nobody is reached, and Unwelcome. It
        is a ConnectionRefusedError only where every address of that host refuses.

        `limit_s` is for the connection; a name that has to be looked up has a time of its own (`Names`).
        """
        try:
            addresses = await self._names.look_up(host)
            async with asyncio.timeout(limit_s):
                await self._connect(channel, addresses, port)
        except ssl.SSLError as exc:
            raise Unwelcome(tls_problem(exc)) from None
        except ConnectionRefusedError as exc:
            raise ConnectionRefusedError(_reason(exc)) from None
        except OSError as exc:
            raise OSError(_reason(exc) or f"no answer within {limit_s:g} s") from None
        channel.keep_alive()

    async def _connect(self, channel: Channel, addresses: tuple[str, ...], port: int) -> None:
        """By the first address that leads to a peer of the fleet. Raises OSError, that of the last one which is no
        refusal."""
        why: OSError | None = None
        for address in addresses:
            try:
                await asyncio.get_running_loop().create_connection(
                    lambda: channel,
                    address,
                    port,
                    ssl=self._tls,
                    server_hostname="",  # the key is the identity, and a name would be checked by nobody
                    local_addr=self._local_address(address),
                )
                return
            except OSError as exc:
                if why is None or not isinstance(exc, ConnectionRefusedError):
                    why = exc
        assert why is not None, "a host without an address"
        raise why


def _reason(exc: OSError) -> str:
    """Why nobody was reached; "": no answer in time."""
    if exc.errno and str(exc.strerror).startswith("Connect call failed"):
        return os.strerror(exc.errno).lower()  # asyncio's words have the address instead
    if exc.errno:
        return (exc.strerror or str(exc)).lower()
    return str(exc) or ("" if isinstance(exc, TimeoutError) else "the connection ended while it was made")
