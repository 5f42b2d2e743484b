"""Reads the CPU time and the memory of processes from Linux's /proc (proc(5))."""

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_UTIME, _CSTIME = 11, 14
"""The line /proc/PID/stat has four times: the user and the system time of the process, and then those of its children
that have ended. `_UTIME` and `_CSTIME` are the indexes of the first and the last of these times, among the fields after
the name of the process.
"""


def cpu_seconds(pid: int) -> float:
    """Returns the CPU seconds (user and system) of a running process, of its child processes, of their child processes,
    and so on, together.

    Processes that have ended are included. Of those that still run, only those that a main thread started are included.
    The call is cheap, because it reads no files of unrelated processes.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # the process has just ended, and the time of its parent now includes its time
    own = sum(map(int, fields[_UTIME : _CSTIME + 1])) / _TICKS_PER_S
    return own + sum(cpu_seconds(int(child)) for child in children)


def peak_mib(pid: int) -> float:
    """Returns the most resident memory that a running process has had so far, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024
