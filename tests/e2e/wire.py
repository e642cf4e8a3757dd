"""A bare client of supd's control socket, for what supctl never does, and for what it would do too slowly."""

import os
import socket
import sys
from pathlib import Path

from protocol.framing import FrameDecoder, encode_frame
from protocol.messages import encode
from protocol.messages.control import (
    CONTROL_VERSION,
    ControlReply,
    Greeting,
    Request,
    Start,
    decode_greeting,
    decode_reply,
)
from tests.e2e.supd import Supd

TIMEOUT_S = 20.0


def ask(control: Path, request: Request) -> ControlReply:
    """The first reply to a request; raises OSError where supd is not there, or goes away before it has answered."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(str(control))
        greeting = Greeting(control_version=CONTROL_VERSION, supd_version="test")
        connection.sendall(encode_frame(encode(greeting)) + encode_frame(encode(request)))
        decoder, frames = FrameDecoder(), list[bytes]()
        while len(frames) < 2:
            data = connection.recv(1 << 20)
            if not data:
                raise ConnectionResetError("supd went away")
            frames += decoder.feed(data)
    decode_greeting(frames[0])
    return decode_reply(frames[1])


def start_request(supd: Supd, job_file: Path, request_id: str) -> Start:
    """What `supctl start` would send: its environment has the mark by which `supd.survivors` knows ranks."""
    return Start(
        request_id=request_id,
        job_file=job_file.read_bytes(),
        source=str(job_file),
        folder=str(job_file.parent),
        python=sys.executable,
        env={os.fsencode(k): os.fsencode(v) for k, v in supd.env.items() if not k.startswith("SUPD_")},
        limits={},
        umask=0o022,
    )
