"""`python -m supervisor.shell.make_credential PATH`: make a fleet's credential, 0600, unless there is one."""

import datetime
import os
import secrets
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOT_BEFORE = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""RFC 5280, 4.1.2.5: the date of a certificate without a well-defined end."""


def credential() -> bytes:
    """A new private key and its self-signed certificate, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "supd fleet")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOT_BEFORE)
        .not_valid_after(NOT_AFTER)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)


def write_once(path: str, content: bytes) -> None:
    """Put the file there whole and 0600; where somebody was faster, theirs stays (hosts may share a home)."""
    draft = f"{path}.{secrets.token_hex(8)}.new"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, content)
        os.fsync(fd)
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        os.close(fd)
        os.unlink(draft)


if __name__ == "__main__":
    write_once(sys.argv[1], credential())
