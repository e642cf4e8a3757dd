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
CERTIFICATE = "-----BEGIN CERTIFICATE-----"
ANOTHER = "name another in supd.toml, [fleet] credential; where nothing is, one is made"


def ensure_credential(path: Path) -> None:
    """Make the fleet's credential if there is none; raises Refused where that fails, or others could read it."""
    if not path.exists():
        make_credential(path)
    check_private(path)


def make_credential(path: Path) -> None:
    """Make a credential, unless there is one; raises Refused where that fails.

    It is made by a process of its own: the library for it would stay in supd's memory for weeks.
    """
    made = subprocess.run(
        [sys.executable, "-E", "-P", "-m", "supervisor.shell.make_credential", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=MAKE_TIMEOUT_S,
        check=False,
    )
    if made.returncode != 0:
        last = made.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise Refused("F010", f"cannot make the credential {path}: {last[0]}", hint="check that folder's permissions")


def check_private(path: Path) -> None:
    """Raise Refused where others than its owner can read the credential, or its owner is not us."""
    status = path.stat()
    if status.st_mode & 0o077 or status.st_uid != os.geteuid():
        is_ours = status.st_uid == os.geteuid() and path.read_bytes().startswith(PEM)
        hint = f"chmod 600 {path}" if is_ours else ANOTHER
        raise Refused("F011", f"{path} can be read by others, or is not yours", hint=hint)


def fingerprint(path: Path) -> str:
    """What tells one fleet's credential from another's: SHA-256 of its certificate, of which nothing is secret.

    Raises Refused where the file is no credential.
    """
    import hashlib  # only here

    server_context(path)
    _, begin, rest = path.read_text().partition(f"{CERTIFICATE}\n")
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(begin + rest)).hexdigest()
    return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))


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
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # nobody resumes a session: that would be memory for nothing
    try:
        context.load_cert_chain(path)
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as exc:
        raise Refused("F012", f"{path} is no credential: {exc}", hint=ANOTHER) from exc
    return context


# --- what went wrong, in words -----------------------------------------------------------------------------------

NO_TLS = "it does not speak TLS"
_OLD = "its TLS is older than 1.3"
_OURS_REFUSED = "it does not take our fleet key: its own differs"
_PROBLEMS = {  # OpenSSL's ssl/ssl_err.c
    "CERTIFICATE_VERIFY_FAILED": "its fleet key differs from ours: compare them by `supd fleet key show`",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no fleet key",
    "TLSV1_ALERT_UNKNOWN_CA": _OURS_REFUSED,
    "TLSV1_ALERT_DECRYPT_ERROR": _OURS_REFUSED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _OURS_REFUSED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _OURS_REFUSED,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _OURS_REFUSED,
    "WRONG_VERSION_NUMBER": NO_TLS,
    "HTTP_REQUEST": NO_TLS,
    "HTTPS_PROXY_REQUEST": NO_TLS,
    "UNSUPPORTED_PROTOCOL": _OLD,
    "TLSV1_ALERT_PROTOCOL_VERSION": _OLD,
    "NO_PROTOCOLS_AVAILABLE": _OLD,
}


def tls_problem(exc: BaseException | None) -> str:
    """What TLS has against a connection, in words for people; "" where the error is none of TLS."""
    if not isinstance(exc, ssl.SSLError):
        return ""
    return _PROBLEMS.get(exc.reason or "", f"TLS fails: {exc.reason or exc}")
