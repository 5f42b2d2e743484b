"""The steps of the demo's story, numbered and timed."""

import time

from rich.console import Console
from rich.text import Text


class Stopwatch:
    """Prints the steps with numbers, and how long each took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._step = 0
        self._since = time.monotonic()

    def say(self, text: str) -> None:
        """Prints the next step."""
        self._step += 1
        self._console.print(Text(f"{self._step}. ", style="bold"), text, sep="")

    def lap(self, text: str) -> None:
        """Prints the next step, which is done, with the time since the one before."""
        now = time.monotonic()
        self.say(f"{text} ({now - self._since:.1f} s)")
        self._since = now
