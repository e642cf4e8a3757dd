"""surroundings.py FOLDER [--fail G]: writes what a process is born with to FOLDER/<generation>-<rank>.json.

Every rank then waits until all have written; in generation G rank 0 fails, and the others live on.
"""

import json
import os
import resource
import socket
import sys
import time
from pathlib import Path

environ = {name.hex(): value.hex() for name, value in os.environb.items()}
env = os.environ
folder, generation, rank = Path(sys.argv[1]), env["SUPD_GENERATION"], env["RANK"]
umask = os.umask(0)
os.umask(umask)
port_is_free = True
if rank == "0":
    try:
        with socket.create_server((env["MASTER_ADDR"], int(env["MASTER_PORT"])), reuse_port=False):
            pass
    except OSError:
        port_is_free = False
born = {
    "environ": environ,
    "cwd": os.getcwd(),
    "argv": sys.argv[2:],
    "executable": sys.executable,
    "prefix": sys.prefix,
    "umask": umask,
    "limits": {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in ("NOFILE", "CORE", "STACK")},
    "port_is_free": port_is_free,
}
draft = folder / f"{generation}-{rank}.new"
draft.write_text(json.dumps(born))
draft.rename(folder / f"{generation}-{rank}.json")
while not all((folder / f"{generation}-{other}.json").exists() for other in range(int(env["WORLD_SIZE"]))):
    time.sleep(0.01)
if sys.argv[-2] == "--fail" and sys.argv[-1] == generation:
    os._exit(3) if rank == "0" else time.sleep(3600)
