"""Prints text safely on a terminal.

The text may contain names and values that anybody has chosen. They must not control the terminal, and must not reverse
the direction in which its text is read.
"""

import re
import sys
from typing import TextIO

# Control characters (C0, DEL and C1), and the characters that change the reading direction or end a line.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_BLANKS = str.maketrans("\t\n\r", "   ")  # in JSON, these characters occur only between tokens


def safe(text: str) -> str:
    """Returns `text` with unsafe characters escaped as in JSON strings, so that JSON text keeps its meaning."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def safe_lines(text: str) -> str:
    """Escapes the characters that `safe` escapes, except for the newlines between lines."""
    return "\n".join(map(safe, text.split("\n")))


def json_line(text: bytes) -> str:
    """Returns JSON as one safe line. The white space between its tokens becomes spaces."""
    return safe(text.decode().translate(_BLANKS))


def say(text: str, *, file: TextIO | None = None, end: str = "\n") -> None:
    """Prints lines safely and flushes them; `file` is stdout by default."""
    print(safe_lines(text), file=file or sys.stdout, end=end, flush=True)
