"""The key that the nodes of a launch share."""

import os
from pathlib import Path

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from supervisor.shell.paths import xdg_folder
from supervisor.shell.tls import ensure_credential
from supervisor.suprun.plan import LaunchPlan

KEY_VARIABLE = "SUPD_FLEET_KEY"

KNOWN_TO_ALL = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg2B2DYK0Gqv/ATLvq
NDDxD0MDfYcyjKuj8PeSCg5OiLahRANCAASM48KuMB6T8KZZhhwKY91AAGPWWItR
hkWvHeMhgfTdzlG3NZYfUrb3WchFMD3/omNnF89BWPR3BLjwehhEYVNJ
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBYzCCAQmgAwIBAgIURdTIOQfhjWkKcsf+J6fFzgZbZhgwCgYIKoZIzj0EAwIw
FTETMBEGA1UEAwwKc3VwZCBmbGVldDAgFw0wMDAxMDEwMDAwMDBaGA85OTk5MTIz
MTIzNTk1OVowFTETMBEGA1UEAwwKc3VwZCBmbGVldDBZMBMGByqGSM49AgEGCCqG
SM49AwEHA0IABIzjwq4wHpPwplmGHApj3UAAY9ZYi1GGRa8d4yGB9N3OUbc1lh9S
tvdZyEUwPf+iY2cXz0FY9HcEuPB6GERhU0mjNTAzMBIGA1UdEwEB/wQIMAYBAf8C
AQAwHQYDVR0OBBYEFMxSZBGaWNQoOIkx5EAdjDfBGNJfMAoGCCqGSM49BAMCA0gA
MEUCIGMPgCQVqe+c8OIX1Glr3RYAbwCy56FO7Y0yh9emejZ6AiEAwcYj2JATsSQg
JcZJqq+1cTdopvt5krczd5hDyvbaDlU=
-----END CERTIFICATE-----
"""
"""For --insecure: whoever has this program has this key, so that it keeps out nobody."""


def shared_key() -> Path:
    """SUPD_FLEET_KEY, else `fleet.pem` in the user's configuration, made on first use: where the home is shared, every
    node has the same one. Raises Refused."""
    named = os.environ.get(KEY_VARIABLE, "")
    if named:
        path = Path(named).absolute()
        if not path.exists():
            hint = "copy the key of another node there; supd fleet key new makes one, and says where"
            raise Refused(
                "C031", f"{KEY_VARIABLE} is {named}, and that is not there", hint=hint, exit_code=ExitCode.INVALID
            )
    else:
        path = xdg_folder(os.environ, "XDG_CONFIG_HOME", ".config") / "supd" / "fleet.pem"
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        ensure_credential(path)
    except OSError as exc:
        hint = f"name another place: export {KEY_VARIABLE}=PATH"
        message = f"the key of this job's nodes cannot be made at {path}: {exc.strerror or exc}"
        raise Refused("C031", message, hint=hint, exit_code=ExitCode.INVALID) from None
    return path


def key_mend(plan: LaunchPlan, path: Path) -> str:
    """What to do where the nodes have different keys."""
    if plan.is_insecure:
        return "the nodes have different keys: give --insecure on all of them, or on none"
    return f"the nodes have different keys: copy {path} of one node to the others, or name one with {KEY_VARIABLE}"


def key_of_one(state: Path) -> Path:
    """For a job of one node: the shared key where that can be had, else one that lasts as long as the job."""
    try:
        return shared_key()
    except Refused:
        path = state / "fleet.pem"
        ensure_credential(path)
        return path


def known_key(state: Path) -> Path:
    """For --insecure."""
    path = state / "known.pem"
    path.touch(0o600)
    path.write_text(KNOWN_TO_ALL)
    return path
