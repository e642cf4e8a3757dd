"""What suprun and its runner both need: loaded once, before the one is forked off the other (forking.py). What only one
of them needs is loaded by each for itself, both at the same time."""

# ruff: noqa: F401

import asyncio.subprocess

import structlog
import uvloop

import protocol.member
import supervisor.logs.keeper
import supervisor.shell.devices
import supervisor.shell.dial
import supervisor.shell.driver
import supervisor.shell.tls_server
