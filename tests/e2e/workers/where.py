"""where.py FILE: writes which Python this is, where it is, and which of some modules it can import."""

import importlib.util
import json
import os
import sys

names = ("of_the_submitter", "of_the_daemon", "only_in_the_environment", "beside_the_script")
found = {
    "prefix": sys.prefix,
    "cwd": os.getcwd(),
    "modules": [name for name in names if importlib.util.find_spec(name)],
    "argv": sys.argv[2:],
}
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(found, file)
