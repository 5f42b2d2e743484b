"""Waits until a service that writes a file log has reached a checkpoint."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from changelog.connectors.sinks.files.log import read_checkpoint
from changelog.envelope.checkpoint import Checkpoint


def wait(service: subprocess.Popen[bytes], log: Path, reached: Callable[[Checkpoint], bool], timeout_s: float) -> None:
    """Waits until `reached` returns true for the checkpoint that is stored in `log`.

    Raises SystemExit if the service ends first, or if this takes longer than `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        checkpoint = read_checkpoint(log)
        if checkpoint is not None and reached(checkpoint):
            return
        if service.poll() is not None:
            raise SystemExit("the service ended; run it by hand to see why")
        time.sleep(0.1)
    raise SystemExit("the service took too long")
