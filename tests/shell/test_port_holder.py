import os
import socket
from pathlib import Path

from supervisor.shell.port_holder import UNSEEN, port_holder

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def line(port: int, state: str, uid: int, inode: int) -> str:
    """A line of /proc/net/tcp for 127.0.0.1."""
    return f"   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid} 0 {inode} 1\n"


def fake(proc: Path, table: str) -> str:
    """A /proc with these sockets, and with the process 42 of a run, which has the socket 7."""
    (proc / "net").mkdir()
    (proc / "net" / "tcp").write_text(HEAD + table)
    (proc / "42" / "fd").mkdir(parents=True)
    (proc / "42" / "fd" / "3").symlink_to("socket:[7]")
    (proc / "42" / "comm").write_text("python3\n")
    (proc / "42" / "environ").write_text("A=b\0SUPD_RUN=train@12ab34\0")
    return str(proc)


def test_the_process_that_listens_is_named() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")):
        with socket.create_server((host, 0), family=family) as server:
            name = Path("/proc/self/comm").read_text().strip()
            assert port_holder(server.getsockname()[1]) == f"pid {os.getpid()} ({name})"


def test_a_process_of_a_run_is_named_with_it(tmp_path: Path) -> None:
    proc = fake(tmp_path, line(500, "06", 0, 0) + line(500, "01", 0, 8) + line(500, "0A", 0, 7))
    assert port_holder(500, proc) == "pid 42 (python3), of run train@12ab34"


def test_of_what_we_may_not_see_the_user_is_named(tmp_path: Path) -> None:
    proc = fake(tmp_path, line(500, "0A", 1001, 9) + line(501, "06", 0, 0))
    assert port_holder(500, proc) == "a process of uid 1001 has it"
    assert port_holder(501, proc) == UNSEEN, "a connection of the past has no process"
    assert port_holder(502, proc) == UNSEEN
