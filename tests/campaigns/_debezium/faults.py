"""Disturbs the service that runs Debezium: kills Java or the service, or ends its connections to the database."""

from collections import Counter
from collections.abc import Callable
from random import Random

from changelog.connectors.sources.debezium.source import FAIL_POINTS as SOURCE_FAIL_POINTS
from tests.campaigns._service import FAIL_POINTS, Service
from tests.integration.debezium.site import java_of, kill

PAUSE_S_MAX = 8.0
"""The longest wait before a fault. Java starts in less time, so faults come before, while and after Debezium reads."""


class Faults:
    """Makes the service fail. `cut` ends the sessions that read the database's log. `counts` says what was done."""

    def __init__(self, random: Random, service: Service, cut: Callable[[], None]) -> None:
        self._random, self._service, self._cut = random, service, cut
        self.counts = Counter[str]()

    def make(self) -> None:
        """Makes one fault, after a while. If the service ended, starts it again; else it must recover by itself."""
        crashed = self._service.wait(self._random.random() * PAUSE_S_MAX)
        if crashed:
            self.counts["crash"] += 1
            self._service.start()
            return
        choice = self._random.choice(("java", "service", "fail point", "connection"))
        match choice:
            case "java":
                java = java_of(self._service.pid)
                if java is None:
                    choice = "java had not started"
                else:
                    kill(java)
            case "connection":
                self._cut()
            case "service":
                self._service.kill()
                self._service.start()
            case "fail point":
                self._service.kill()
                name = self._random.choice((*FAIL_POINTS, *SOURCE_FAIL_POINTS))
                self._service.start(f"{name}:{self._random.randrange(1, 8)}")
        self.counts[choice] += 1

    def end(self) -> None:
        """Lets the service run without faults from now on."""
        self._service.kill()
        self._service.start()
