"""Beats once, says where, and waits to be ended."""

import os
import signal

import supd

supd.beat(int(os.environ["SUPD_GENERATION"]))
print(os.environ["SUPD_HEARTBEAT"], flush=True)
signal.pause()
