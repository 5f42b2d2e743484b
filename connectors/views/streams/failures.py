"""Decides whether Kafka Streams goes on after an error has ended one of its threads."""

import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final

import structlog

from changelog.envelope.errors import ChangelogError, Kind

AGAIN_S: Final = 5.0
"""How long a thread that has failed waits before it is replaced, in seconds."""

_GLOBAL_THREAD = "GlobalStreamThread"
"""A part of the name of the thread that follows small tables. Kafka Streams cannot replace this thread."""

_ASK_AGAIN_S = 1.0
"""How long a thread that was fenced waits before it asks for the members of the group, in seconds."""

_SESSIONS, _PATIENCE_S = 2.0, 30.0
"""A name that stays in the group for `_SESSIONS` times `session_s`, and for at least `_PATIENCE_S` seconds, belongs to
another process.
"""

_log = structlog.get_logger("views")


class Failures:
    """What has failed in an application. `error` is the error that ended Kafka Streams, or None. `has_failed_thread`
    says whether any thread has failed.

    Each thread is a member of the application's consumer group, with the name `member`-NUMBER. `find_members` returns
    the names of the group's members, or raises ChangelogError. `advertised` and `session_s` are as in `TablesSettings`.
    """

    def __init__(
        self,
        application: str,
        member: str,
        find_members: Callable[[], Collection[str]],
        *,
        advertised: str | None,
        session_s: float,
    ) -> None:
        self._application, self._member, self._find_members = application, member, find_members
        self._advertised, self._session_s = advertised, session_s
        self.error: ChangelogError | None = None
        self.has_failed_thread = False
        self._ending = threading.Event()

    def refuse(self) -> None:
        """Raises the error that ended Kafka Streams, if there was one."""
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Ends the waits of all threads, because Kafka Streams will be ended."""
        self._ending.set()

    def again_after(self, text: str, thread: str) -> bool:
        """Returns whether Kafka Streams should replace a thread that an error has ended. If so, waits first.

        `text` is the error's text, and `thread` the thread's name.
        """
        self.has_failed_thread = True
        if self.error is not None:
            return False
        if "FencedInstanceId" in text and (self._advertised is None or self._was_taken_over(thread)):
            self.error = self._taken_over()
        elif "InvalidSessionTimeout" in text:
            self.error = ChangelogError(
                Kind.PRECONDITION,
                f"the broker does not allow a session of {self._session_s:g} s",
                hint="change [serve.streams] session_seconds, or the broker's group.min.session.timeout.ms and "
                "group.max.session.timeout.ms",
            )
        elif "is unknown to the topology" in text:
            self.error = ChangelogError(
                Kind.IN_USE,
                f"another process with other views uses the application {self._application}",
                hint="stop it, or give each process its own [serve.streams] application",
            )
        elif _GLOBAL_THREAD in thread:
            self.error = ChangelogError(
                Kind.CONNECTION, f"checkpoints cannot be followed any more: {text}", hint="start the command again"
            )
        elif "MissingSourceTopic" in text:
            self.error = ChangelogError(
                Kind.PRECONDITION, f"a topic is gone: {text}", hint="start the command again once the topic exists"
            )
        if self.error is not None:
            _log.error("kafka streams ended", error=str(self.error))
            return False
        _log.error("a thread of kafka streams failed", error=text)
        self._ending.wait(AGAIN_S)
        return not self._ending.is_set()

    def _taken_over(self) -> ChangelogError:
        address, hint = self._advertised, "run only one of them, or give each its own [serve.streams]"
        if address is not None:
            return ChangelogError(
                Kind.IN_USE, f"another process took over the address {address}", hint=f"{hint} advertised"
            )
        return ChangelogError(
            Kind.IN_USE,
            f"another process took over the application {self._application}",
            hint=f"{hint} application; if no other process runs, a broker has failed: start the command again",
        )

    def _was_taken_over(self, thread: str) -> bool:
        """Returns whether another process is in the group under the name of a thread that was fenced.

        Kafka also fences a thread that nobody has replaced: the group's coordinator can fail after it has given the
        thread a new id, and before it has stored this id. The next coordinator knows only the thread's earlier id.
        Nobody uses that id any more, so Kafka removes the name from the group after `session_s`. If the name stays
        longer, it belongs to another process. While Kafka does not answer, this is not known.

        If `advertised` is None, this process must be the only one, and this method is not called. The thread that
        replaces a fenced one has another name, so a process that took over just now would not fence that thread, and
        the two processes would share the partitions.
        """
        name, patience_s = f"{self._member}-{thread.rpartition('-')[2]}", max(_SESSIONS * self._session_s, _PATIENCE_S)
        answered, deadline_s = True, time.monotonic() + patience_s
        while time.monotonic() < deadline_s and self.error is None and not self._ending.wait(_ASK_AGAIN_S):
            try:
                if name not in self._find_members():
                    return False
                answered = True
            except ChangelogError as error:
                if answered:
                    _log.warning("cannot find out whether another process took over", error=str(error))
                answered, deadline_s = False, time.monotonic() + patience_s
        return self.error is None and not self._ending.is_set()


def text_of(error: Any) -> str:
    """Returns the messages of a Java exception and of its causes, in one line."""
    texts: list[str] = []
    while error is not None and len(texts) < 5:
        texts.append(" ".join(str(error.toString()).split()))
        error = error.getCause()
    return ": ".join(texts)
