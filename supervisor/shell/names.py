"""Name service that may hang, fail or come late: looked up in threads of its own, one a name."""

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Callable

from protocol.addresses import is_address

LOOKUP_TIMEOUT_S = 5.0
"""Longest wait for an answer. The C library goes on for longer (resolv.conf(5)); its answer counts when asked again."""

NAMES_MAX = 1000
"""Names that are being looked up; each has a thread."""

Answer = tuple[str, ...] | OSError


def resolve(host: str) -> tuple[str, ...]:
    """The addresses of a name, in the order in which they should be tried (RFC 6724). Blocks; raises OSError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:  # a part of it is empty, or too long
        raise OSError(errno.EINVAL, "that cannot be a name") from None
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


class Names:
    """Finds the addresses of names, again at each call: what is unknown now may be known soon.

    The loop's own threads are not used: they would all come to wait for a name server that does not answer.
    """

    def __init__(
        self, resolve: Callable[[str], tuple[str, ...]] = resolve, timeout_s: float = LOOKUP_TIMEOUT_S
    ) -> None:
        self._resolve = resolve
        self._timeout_s = timeout_s
        self._asked: dict[str, asyncio.Future[Answer]] = {}

    async def look_up(self, host: str) -> tuple[str, ...]:
        """The addresses of a host, at least one; an address is its own. Raises OSError, whose strerror says why not."""
        if is_address(host):
            return (host,)
        if host not in self._asked:
            if len(self._asked) >= NAMES_MAX:
                raise OSError(errno.EAGAIN, "too many names are being looked up")
            loop = asyncio.get_running_loop()
            self._asked[host] = loop.create_future()
            threading.Thread(target=self._ask, args=(host, loop), name=f"look up {host}", daemon=True).start()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await asyncio.shield(self._asked[host])
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, "the name service does not answer") from None
        if isinstance(answer, OSError):
            raise answer
        return answer

    def _ask(self, host: str, loop: asyncio.AbstractEventLoop) -> None:
        answer: Answer
        try:
            answer = self._resolve(host)
        except OSError as exc:
            answer = exc
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._on_answer, host, answer)

    def _on_answer(self, host: str, answer: Answer) -> None:
        self._asked.pop(host).set_result(answer)
