"""Checks that lines of Markdown are at most 120 characters; tables are excepted, and blocks that show output.

Exits 1 with one line for each that is longer.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX = 120
FENCE = re.compile(r"\s*(`{3,})(\w*)")
SHOWN = ("", "text")
"""The languages of blocks that show output."""


def main() -> int:
    """Prints what is too long; gives the exit code."""
    listed = subprocess.run(["git", "ls-files", "*.md"], check=False, capture_output=True, text=True)
    pages = map(Path, listed.stdout.splitlines() or Path().glob("docs/**/*.md"))
    wrong = [f"{page}:{line}" for page in pages if page.exists() for line in too_long(page.read_text("utf-8"))]
    for place in wrong:
        print(f"{place}: longer than {MAX} characters", file=sys.stderr)
    return 1 if wrong else 0


def too_long(text: str) -> Iterator[int]:
    """The numbers of lines that are too long."""
    closes, shown = "", False
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if fence and not closes:
            closes, shown = fence[1], fence[2] in SHOWN
        elif closes and line.strip() == closes:
            closes, shown = "", False
        elif len(line) > MAX and not shown and not line.lstrip().startswith("|"):
            yield number


if __name__ == "__main__":
    sys.exit(main())
