"""`supd fleet key`: make the credential that the nodes of a fleet share, or say which one is here."""

import os

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from supervisor.shell.config import Config
from supervisor.shell.tls import check_private, fingerprint, make_credential


def new(config: Config) -> str:
    """Make one where supd.toml has it; raises Refused where something is there already. Returns what to print."""
    path = config.credential
    if os.path.lexists(path):
        hint = "to make another one, move it away, and copy the new one to every node: until then they are two fleets"
        raise Refused("F014", f"{path} is there already", hint=hint)
    if path.parent == config.state_dir:
        config.make_private(config.state_dir, "state", "dir")
    make_credential(path)
    return show(config)


def show(config: Config) -> str:
    """Where it is, and its fingerprint: never the key. Raises Refused. Returns what to print."""
    path = config.credential
    try:
        check_private(path)
        return f"credential   {path}\nfingerprint  sha256 {fingerprint(path)}\n"
    except FileNotFoundError:
        hint = "copy fleet.pem of the fleet's host here, or make one with `supd fleet key new`"
        raise Refused("F013", f"there is no fleet key at {path}", hint=hint, exit_code=ExitCode.INVALID) from None
    except OSError as exc:
        raise Refused("F012", f"{path} cannot be read: {exc.strerror}", hint="see [fleet] credential") from None
