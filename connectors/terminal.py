"""What is shown may hold names and values that anybody chose: none of it may act on a terminal, or turn its text."""

import re
import sys
from typing import TextIO

# Controls (C0, DEL and C1), and what turns the reading direction or ends a line.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def safe(text: str) -> str:
    """`text` with such characters spelled out, as JSON does: JSON text stays the same JSON."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def safe_lines(text: str) -> str:
    """`safe` of each line of a text that has several."""
    return "\n".join(map(safe, text.split("\n")))


def say(text: str, *, file: TextIO | None = None, end: str = "\n") -> None:
    """Prints lines, by default on stdout, and at once."""
    print(safe_lines(text), file=file or sys.stdout, end=end, flush=True)
