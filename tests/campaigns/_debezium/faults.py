"""Disturbs the service that runs Debezium. Kills the service or its Java process, or ends Debezium's sessions in the
database.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

from changelog.connectors.sources.debezium.source import FAIL_POINTS as SOURCE_FAIL_POINTS
from tests.campaigns._service import FAIL_POINTS, Service
from tests.integration.debezium.site import java_of, kill

PAUSE_S_MAX = 8.0
"""The longest time before a fault. Java needs less time to start, so faults come before Debezium reads, while it reads,
and after it has read.
"""


class Faults:
    """Makes the service fail. `cut` ends the sessions that read the database's log. `counts` has the faults by kind."""

    def __init__(self, random: Random, service: Service, cut: Callable[[], None]) -> None:
        self._random, self._service, self._cut = random, service, cut
        self.counts = Counter[str]()

    def make(self) -> None:
        """Makes one fault, after a while. If the service crashes at a fail point before, counts this as the fault, and
        only starts the service again.
        """
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
        """Starts the service again, without a fail point at which it would crash."""
        self._service.kill()
        self._service.start()
