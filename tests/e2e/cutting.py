"""A way to supd's control socket that breaks off again and again."""

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


class CuttingSocket:
    """Passes on what comes to `path`; once `is_cutting`, it cuts so many connections after a random number of bytes."""

    def __init__(self, path: Path, target: Path, rng: random.Random, cuts: int, bytes_max: int) -> None:
        self.is_cutting = False
        self._cuts_left = cuts
        self._target = target
        self._rng = rng
        self._bytes_max = bytes_max
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def close(self) -> None:
        """Take no more connections; those there are end with their ends."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(20)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self._target))
            except OSError:  # supd is away
                client.close()
                server.close()
                continue
            for here, there in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=self._pass_on, args=(here, there, here is server)))
                self._threads[-1].start()

    def _pass_on(self, here: socket.socket, there: socket.socket, may_cut: bool) -> None:
        left = self._rng.randrange(1, self._bytes_max)
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                if may_cut and self.is_cutting and self._cuts_left > 0:
                    if len(data) >= left:
                        self._cuts_left -= 1
                        there.sendall(data[:left])
                        break
                    left -= len(data)
                there.sendall(data)
        for end in (here, there):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        here.close()


@contextlib.contextmanager
def cutting(path: Path, target: Path, *, seed: int, cuts: int, bytes_max: int) -> Iterator[CuttingSocket]:
    """One for the length of a `with` block."""
    socket_ = CuttingSocket(path, target, random.Random(seed), cuts, bytes_max)
    try:
        yield socket_
    finally:
        socket_.close()
