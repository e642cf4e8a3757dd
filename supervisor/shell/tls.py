"""The fleet's one credential, and the TLS contexts made of it.

A fleet is one trust domain: whoever holds `fleet.pem` belongs to it (docs/architecture.md). The file holds a P-256
key and a self-signed certificate that both sides present and both sides trust, and nothing else. It is valid
from long ago and for ever: clocks decide nothing here.
"""

import os
import ssl
import subprocess
import sys
from pathlib import Path

from protocol.errors import Refused

MAKE_TIMEOUT_S = 60
PEM = b"-----BEGIN "
ANOTHER = "name another in supd.toml, [fleet] credential; where nothing is, one is made"


def ensure_credential(path: Path) -> None:
    """Make the fleet's credential if there is none; raises Refused where that fails, or others could read it.

    It is made by a process of its own: the library for it would stay in supd's memory for weeks.
    """
    if not path.exists():
        made = subprocess.run(
            [sys.executable, "-E", "-P", "-m", "supervisor.shell.make_credential", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=MAKE_TIMEOUT_S,
            check=False,
        )
        if made.returncode != 0:
            last = made.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
            raise Refused(
                "F010", f"cannot make the credential {path}: {last[0]}", hint="check that folder's permissions"
            )
    status = path.stat()
    if status.st_mode & 0o077 or status.st_uid != os.geteuid():
        is_ours = status.st_uid == os.geteuid() and path.read_bytes().startswith(PEM)
        hint = f"chmod 600 {path}" if is_ours else ANOTHER
        raise Refused("F011", f"{path} can be read by others, or is not yours", hint=hint)


def server_context(path: Path) -> ssl.SSLContext:
    """For the side that listens; raises Refused where the file is no credential."""
    return _context(ssl.PROTOCOL_TLS_SERVER, path)


def client_context(path: Path) -> ssl.SSLContext:
    """For the side that connects; raises Refused where the file is no credential."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, path)


def _context(protocol: int, path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the key is the identity: addresses change, the fleet does not
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(path)
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as exc:
        raise Refused("F012", f"{path} is no credential: {exc}", hint=ANOTHER) from exc
    return context
