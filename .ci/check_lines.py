"""Checks that lines of Markdown have at most 120 characters. Tables and blocks that show output may be wider.

Prints where a line is too long, and exits with 1 if there is such a line.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX = 120
FENCE = re.compile(r"\s*(`{3,})(\w*)")
OUTPUT_LANGUAGES = ("", "text")
"""A fenced block shows output if one of these follows the backticks that open it."""


def main() -> int:
    """Prints the lines that are too long, and returns the exit code."""
    listed = subprocess.run(["git", "ls-files", "*.md"], check=False, capture_output=True, text=True)
    pages = map(Path, listed.stdout.splitlines() or Path().glob("docs/**/*.md"))
    long_lines = [f"{page}:{line}" for page in pages if page.exists() for line in too_long(page.read_text("utf-8"))]
    for long_line in long_lines:
        print(f"{long_line}: longer than {MAX} characters", file=sys.stderr)
    return 1 if long_lines else 0


def too_long(text: str) -> Iterator[int]:
    """Yields the numbers of the lines that are too long."""
    closing_fence, is_output = "", False
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if fence and not closing_fence:
            closing_fence, is_output = fence[1], fence[2] in OUTPUT_LANGUAGES
        elif closing_fence and line.strip() == closing_fence:
            closing_fence, is_output = "", False
        elif len(line) > MAX and not is_output and not line.lstrip().startswith("|"):
            yield number


if __name__ == "__main__":
    sys.exit(main())
