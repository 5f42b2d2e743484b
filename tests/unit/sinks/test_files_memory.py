"""Tests how much memory the file sink takes to store a large row."""

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S

MIB = 64


def test_a_large_row_takes_less_than_four_times_its_size(tmp_path: Path) -> None:
    """Two commits are measured. Each has a small row and a large one."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.unit.sinks.large_writer", str(tmp_path / "changelog"), str(MIB)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    peaks_mib = [float(line) for line in process.stdout.split()]
    assert len(peaks_mib) == 2
    assert max(peaks_mib) < 4 * MIB
