"""A node of an older release: it says what that release recorded, byte for byte but for who it is, and of what it
hears it knows no more than was recorded.

    old_node.py FOLDER HOST PORT CREDENTIAL NAME

It serves one run, with a runner that does as it is told, and ends once the coordinator has its runner's end on disk.
"""

import asyncio
import itertools
import ssl
import sys
from pathlib import Path
from typing import Any

import msgspec

PACE_S = 0.1
FIRST_PORT = 40001


def frames(path: Path) -> list[Any]:
    data, found = path.read_bytes(), []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        found.append(msgspec.msgpack.decode(data[4:size]))
        data = data[size:]
    return found


def patched(value: Any, who: dict[str, Any]) -> Any:
    """What was recorded, with other identities in it, at any depth."""
    match value:
        case dict():
            return {key: who[key] if key in who else patched(item, who) for key, item in value.items()}
        case list():
            return [patched(item, who) for item in value]
        case _:
            return value


def known(heard: Any, recorded: list[Any]) -> Any:
    """What that release understands of a message: fields that it knows, of messages that it knows."""
    match heard:
        case {"type": kind}:
            fields = {key for one in recorded if one["type"] == kind for key in one}
            assert fields, f"{kind} is not known to this release"
            return {key: known(value, recorded) for key, value in heard.items() if key in fields}
        case _:
            return heard


class Node:
    """The node, its door, and its runner."""

    def __init__(self, folder: Path, host: str, port: int, credential: str, name: str) -> None:
        self.says = {(one["type"], one.get("part", "")): one for one in frames(folder / "node.frames")}
        heard = [
            *frames(folder / "to-node.frames"),
            *frames(folder / "to-runner.frames"),
            *frames(folder / "first.frames"),
        ]
        self.hears = heard + [one["order"] for one in heard if "order" in one]
        self.place, self.credential = (host, port), credential
        self.who: dict[str, Any] = {"node": name, "identity": f"identity of {name}"}
        self.who["join"] = [f"{host}:{port}"]

    def tls(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
        context.load_cert_chain(self.credential)
        context.load_verify_locations(self.credential)
        return context

    def say(self, wire: Any, kind: str, part: str = "", **who: Any) -> None:
        """`who` is what else is not as it was recorded."""
        payload = msgspec.msgpack.encode(patched(self.says[kind, part], self.who | who))
        wire[1].write(len(payload).to_bytes(4, "big") + payload)

    async def hear(self, wire: Any) -> Any:
        size = int.from_bytes(await wire[0].readexactly(4), "big")
        return known(msgspec.msgpack.decode(await wire[0].readexactly(size)), self.hears)

    async def connect(self) -> Any:
        return await asyncio.open_connection(*self.place, ssl=self.tls(ssl.PROTOCOL_TLS_CLIENT))

    async def on_peer(self, *wire: Any) -> None:
        assert (await self.hear(wire))["type"] == "Probe"
        self.say(wire, "Probed")
        wire[1].close()

    async def run(self) -> None:
        door = await asyncio.start_server(self.on_peer, "127.0.0.1", 0, ssl=self.tls(ssl.PROTOCOL_TLS_SERVER))
        self.who |= {"address": "127.0.0.1", "port": door.sockets[0].getsockname()[1]}
        wire = await self.connect()
        self.say(wire, "Join")
        assert (await self.hear(wire))["type"] == "Joined"
        async with asyncio.TaskGroup() as group:
            runner: asyncio.Task[None] | None = None
            for number in itertools.count(1):
                empty = ["runners", "buried"] if runner is None else ["runners"] if runner.done() else ["buried"]
                now: dict[str, Any] = {"number": number, **dict.fromkeys(empty, ())}
                self.say(wire, "NodeReport", **now)
                order = await self.hear(wire)
                if order["wanted"] and runner is None:
                    self.who["run"] = order["wanted"][0]
                    runner = group.create_task(self.run_runner())
                if order["settled"]:
                    return
                await asyncio.sleep(PACE_S)

    async def run_runner(self) -> None:
        wire = await self.connect()
        self.say(wire, "Hello")
        assert (await self.hear(wire))["type"] == "Welcome"
        generation, part = -1, "idle"
        for number in itertools.count(1):
            port = FIRST_PORT + generation  # never the last generation's
            self.say(wire, "Renewal", part, number=number, generation=generation, port=port)
            match (await self.hear(wire))["order"]:
                case {"type": "Run", "assignment": {"generation": ordered}}:
                    part = "running" if ordered == generation else "launched"
                    generation = ordered
                case {"type": "Stop", "generation": ordered}:
                    part = "stopping" if part in ("launched", "running") else "stopped"
                    generation = ordered
                case {"type": "Release"}:
                    return
                case _:
                    pass
            await asyncio.sleep(PACE_S)


if __name__ == "__main__":
    folder, host, port, credential, name = sys.argv[1:]
    asyncio.run(Node(Path(folder), host, int(port), credential, name).run())
