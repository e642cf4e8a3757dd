"""Questions to file systems that may hang: a job's folder, its output, a process's /proc.

A thread that waits for such a disk cannot be taken back. So these have threads of their own: however many of them
hang, what supd does on its own account (sweeps, its journal) goes on, and its end waits for none of them.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from protocol.errors import Refused

P = ParamSpec("P")
T = TypeVar("T")

LIMIT_S = 20.0
THREADS_MAX = 16

_threads = ThreadPoolExecutor(THREADS_MAX, "slow-disk")  # each is made when it is needed


async def ask(folder: str | os.PathLike[str], function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `function` returns, which blocks on the disk of `folder`; also what it raises.

    Raises Refused (F106) where that takes more than LIMIT_S, the wait for a thread included. A call that has begun
    goes on to its end all the same, however late that is.
    """
    call = _threads.submit(function, *args, **kwargs)
    try:
        async with asyncio.timeout(LIMIT_S) as limit:
            return await asyncio.wrap_future(call)
    except TimeoutError:
        if not limit.expired():  # the disk's own ETIMEDOUT
            raise
        if call.cancel():
            what = f"all {THREADS_MAX} threads that look at files wait for some that do not answer"
            raise Refused("F106", what, hint="look after the file systems of this node's jobs") from None
        what = f"{os.fspath(folder)} does not answer for {LIMIT_S:g} s"
        raise Refused("F106", what, hint="look after that file system") from None
