"""A service over files that a benchmark runs: how it is waited for."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from changelog.connectors.sinks.files.log import read_checkpoint
from changelog.envelope.checkpoint import Checkpoint


def wait(service: subprocess.Popen[bytes], log: Path, reached: Callable[[Checkpoint], bool], timeout_s: float) -> None:
    """Waits until the checkpoint of `log` has `reached` what is wanted. Raises SystemExit where it does not."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        checkpoint = read_checkpoint(log)
        if checkpoint is not None and reached(checkpoint):
            return
        if service.poll() is not None:
            raise SystemExit("the service ended; run it by hand to see why")
        time.sleep(0.1)
    raise SystemExit("the service did not get there in time")
