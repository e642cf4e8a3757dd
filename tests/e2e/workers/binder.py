"""binder.py FILE [--robbed N] [--clients]: rank 0 listens on MASTER_PORT; all print it and live until FILE is there.

`--robbed N`: in generations below N somebody has the port already. `--clients`: every other rank connects, and in
generation 0 rank 0 then closes all connections and fails, so that its port is left in TIME_WAIT.
"""

import os
import socket
import sys
import time

env = os.environ
place, generation = (env["MASTER_ADDR"], int(env["MASTER_PORT"])), int(env["SUPD_GENERATION"])


def with_clients(server):
    guests = [server.accept()[0] for _ in range(int(env["WORLD_SIZE"]) - 1)]
    for guest in guests:
        guest.sendall(b".")
        guest.shutdown(socket.SHUT_WR)  # ours is the first FIN: TIME_WAIT is on our side
        guest.recv(1)
        guest.close()
    if generation == 0:
        os._exit(3)


if env["RANK"] == "0":
    if "--robbed" in sys.argv and generation < int(sys.argv[sys.argv.index("--robbed") + 1]):
        thief = socket.create_server(place)
    server = socket.create_server(place)
    if "--clients" in sys.argv:
        with_clients(server)
elif "--clients" in sys.argv:
    while True:
        try:
            guest = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    guest.recv(2)
    guest.close()
print(place[1], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
