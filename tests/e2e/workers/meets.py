"""meets.py: rank 0 listens at MASTER_ADDR and MASTER_PORT, all others connect there; says so, and ends with 0."""

import os
import socket
import time

env = os.environ
address = env["MASTER_ADDR"], int(env["MASTER_PORT"])
family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
if env["RANK"] == "0":
    with socket.create_server(address, family=family) as server:
        for _ in range(int(env["WORLD_SIZE"]) - 1):
            server.accept()[0].close()
else:
    while True:
        try:
            socket.create_connection(address).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
print(f"met at {address[0]}")
