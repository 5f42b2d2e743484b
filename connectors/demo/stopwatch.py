"""Prints the steps of the demo, with their numbers and the time that they took."""

import time

from rich.console import Console
from rich.text import Text


class Stopwatch:
    """Prints the steps of the demo with their numbers, and how long steps took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._step = 0
        self._since = time.monotonic()

    def say(self, text: str) -> None:
        """Prints the number of the next step, and `text`."""
        self._step += 1
        self._console.print(Text(f"{self._step}. ", style="bold"), text, sep="")

    def lap(self, text: str) -> None:
        """Prints a step that has just ended, with the time since the previous `lap`, or since the start of the demo."""
        now = time.monotonic()
        self.say(f"{text} ({now - self._since:.1f} s)")
        self._since = now
