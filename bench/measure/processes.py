"""What processes use, by Linux's /proc (proc(5))."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT, _UTIME, _CSTIME = 1, 11, 14
"""Fields of /proc/PID/stat, counted from behind the name: the parent; user and system time, own and of children."""


def cpu_seconds(roots: Sequence[int]) -> list[float]:
    """For each process: user and system seconds, with all that descends from it, whether it still runs or not."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        fields = _stat(folder) if folder.name.isdecimal() else []
        if fields:
            ticks[int(folder.name)] = sum(map(int, fields[_UTIME : _CSTIME + 1]))
            children[int(fields[_PARENT])].append(int(folder.name))

    def total(pid: int) -> int:
        return ticks.get(pid, 0) + sum(map(total, children[pid]))

    return [total(root) / _TICKS_PER_S for root in roots]


def peak_mib(pid: int) -> float:
    """The most memory that a running process had resident at once, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


def _stat(process: Path) -> list[str]:
    try:
        return (process / "stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []  # it ended meanwhile; its parent has its time
