"""The processes of Ray's workers, to send signals to. For tests of what happens when they die."""

import os
import signal
import time
from pathlib import Path


def workers_named(name):
    """The processes of Ray's workers whose title has a name in it."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            title = (place / "cmdline").read_bytes() if place.name.isdigit() else b""
        except OSError:
            continue
        if title.startswith(f"ray::{name}".encode()):
            found.append(int(place.name))
    return found


def signal_one(name, number=signal.SIGKILL, within_s=60):
    """Send a signal to one worker as soon as there is one; which."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        for pid in workers_named(name):
            os.kill(pid, number)
            return pid
        time.sleep(0.01)
    raise AssertionError(f"no worker '{name}' came within {within_s} s")
