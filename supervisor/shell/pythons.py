"""The interpreter that a user means who names none."""

import os
import sys
from collections.abc import Mapping


def find_python(environ: Mapping[str, str]) -> str:
    """The submitter's interpreter: VIRTUAL_ENV's, else the first `python3` or `python` on PATH; "" for none.

    The environment that supd itself is in comes last: it is often on PATH for supctl's sake, and has no torch.
    """
    active = environ.get("VIRTUAL_ENV")
    own = os.path.dirname(sys.executable)
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    folders.sort(key=lambda folder: os.path.abspath(folder) == own and sys.prefix != sys.base_prefix)
    for folder in [os.path.join(active, "bin"), *folders] if active else folders:
        for name in ("python3", "python"):
            path = os.path.abspath(os.path.join(folder, name))
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    return ""
