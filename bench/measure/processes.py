"""What processes use, by Linux's /proc (proc(5))."""

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_UTIME, _CSTIME = 11, 14
"""Fields of /proc/PID/stat, counted from behind the name: user and system time, own and of children that ended."""


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a running process and of all that descends from its main thread, ended or not.

    Cheap enough to be asked often: it looks at these processes only.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it ended meanwhile; its parent has its time
    own = sum(map(int, fields[_UTIME : _CSTIME + 1])) / _TICKS_PER_S
    return own + sum(cpu_seconds(int(child)) for child in children)


def peak_mib(pid: int) -> float:
    """The most memory that a running process had resident at once, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024
