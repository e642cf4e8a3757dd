"""This node's accounts."""

import pwd


def user_name(uid: int) -> str:
    """The name of an account; its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # usual in containers
        return str(uid)
