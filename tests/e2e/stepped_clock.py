"""A time of day of a node's own, which can be stepped while its processes run; the machine's clock stays as it is.

A library is loaded before all others (ld.so(8)) into everything that the node runs: to what the kernel says of
CLOCK_REALTIME it adds the seconds in a file. All other clocks are left alone. It takes a C compiler.
"""

import struct
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *step_s;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("STEPPED_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = fd < 0 ? MAP_FAILED : mmap(0, sizeof *step_s, PROT_READ, MAP_SHARED, fd, 0);
    step_s = page == MAP_FAILED ? 0 : page;
    if (fd >= 0) close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && step_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *step_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed && step_s) now->tv_sec += *step_s;
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class SteppedClock:
    """The time of day of everything that has `env` in its environment."""

    def __init__(self, folder: Path) -> None:
        """Builds the library in `folder`."""
        self._file, library = folder / "step", folder / "stepped_clock.so"
        self.step(0)
        command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=_SOURCE.encode(), check=True, timeout=60)
        self.env = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._file)}

    def step(self, seconds: int) -> None:
        """From now on it is so much ahead of the machine's; below 0: behind."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:  # the same file: it is mapped
            file.write(struct.pack("=q", seconds))
