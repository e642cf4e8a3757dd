"""A node with one runner, as a stranger would write it who has docs/protocol.md to go by, and nothing else."""

import asyncio
import itertools
import ssl
import sys
from typing import Any

import msgspec

HOST, PORT, CREDENTIAL, NODE, ADDRESS = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], "127.0.0.1"


def say(wire: Any, kind: str, **fields: object) -> None:
    payload = msgspec.msgpack.encode({"type": kind, **fields})
    wire[1].write(len(payload).to_bytes(4, "big") + payload)


async def hear(wire: Any) -> Any:
    return msgspec.msgpack.decode(await wire[0].readexactly(int.from_bytes(await wire[0].readexactly(4), "big")))


def tls(side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
    context.load_cert_chain(CREDENTIAL)
    context.load_verify_locations(CREDENTIAL)
    return context


async def on_peer(*wire: Any) -> None:
    assert (await hear(wire))["type"] == "Probe"
    say(wire, "Probed", node=NODE, identity=f"that of {NODE}")
    wire[1].close()


async def run_node() -> None:
    door = await asyncio.start_server(on_peer, ADDRESS, 0, ssl=tls(ssl.PROTOCOL_TLS_SERVER))
    me = {"node": NODE, "identity": f"that of {NODE}", "incarnation": 1, "join": [f"{HOST}:{PORT}"]}
    wire = await asyncio.open_connection(HOST, PORT, ssl=tls(ssl.PROTOCOL_TLS_CLIENT))
    say(wire, "Join", versions=[1], fleet="default", address=ADDRESS, port=door.sockets[0].getsockname()[1], **me)
    order, runner = await hear(wire), list[Any]()
    assert order["type"] == "Joined", order
    async with asyncio.TaskGroup() as group:
        for number in itertools.count(1):
            gone = [one for one, task in runner if task.done()]
            say(wire, "NodeReport", number=number, buried=gone)
            order = await hear(wire)
            if order["wanted"] and not runner:
                one = {"run": order["wanted"][0], "incarnation": "here"}
                runner = [(one, group.create_task(run_runner(one)))]
            if order["settled"]:
                return
            await asyncio.sleep(0.1)


async def run_runner(me: dict[str, str]) -> None:
    wire = await asyncio.open_connection(HOST, PORT, ssl=tls(ssl.PROTOCOL_TLS_CLIENT))
    say(wire, "Hello", versions=[1], fleet="default", node=NODE, **me)
    nproc = (await hear(wire))["job"]["spec"]["topology"]["nproc_per_node"]
    state: dict[str, Any] = {"offer": {"slots": nproc, "address": ADDRESS, "port": 29500}}
    end = {"code": 0, "order": 0, "wall_s": 0.0, "ran_s": 1.0, "stopped_by_us": False}
    parts = iter(("launched", "running", "finished", "finished"))
    for number in itertools.count(1):
        say(wire, "Renewal", number=number, **state)
        order = (await hear(wire))["order"]
        if order["type"] == "Release":
            return
        if order["type"] == "Run":
            mine, part = order["assignment"], next(parts)
            facts = {"started": part != "launched", "exit": end if part == "finished" else None}
            ranks = [{"rank": mine["first_rank"] + i, "local_rank": i, "pid": 1000 + i, **facts} for i in range(nproc)]
            state = {"generation": mine["generation"], "part": part, "ranks": ranks}
        await asyncio.sleep(0.1)


asyncio.run(run_node())
