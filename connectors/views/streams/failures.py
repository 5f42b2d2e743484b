"""Decides whether Kafka Streams goes on after an error has ended one of its threads."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from changelog.envelope.errors import ChangelogError, Kind

AGAIN_S: Final = 5.0
"""How long a thread that has failed waits before it is replaced, in seconds."""

_GLOBAL_THREAD = "GlobalStreamThread"
"""A part of the name of the thread that follows small tables. Kafka Streams cannot replace this thread."""

_THREAD = "-StreamThread-"
"""The part of a thread's name before this text identifies the process. The ids of the process's clients begin with the
same part.
"""

_log = structlog.get_logger("views")


class Failures:
    """What has failed in an application. `error` is the error that ended Kafka Streams, or None. `has_failed_thread`
    says whether any thread has failed.

    The process is in the application's consumer group under names that begin with `member`. `find_members` returns the
    client id of each static member of the group, by its name. `advertised` and `session_s` are as in `TablesSettings`.
    """

    def __init__(
        self,
        application: str,
        member: str,
        find_members: Callable[[], Mapping[str, str]],
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
        """Lets no thread wait any longer, because Kafka Streams will be ended."""
        self._ending.set()

    def again_after(self, text: str, thread: str) -> bool:
        """Returns whether Kafka Streams should replace a thread that an error has ended. If so, waits first.

        `text` is the error's text, and `thread` the thread's name.
        """
        self.has_failed_thread = True
        if self.error is not None:
            return False
        if "FencedInstanceId" in text and self._was_taken_over(thread):
            address = self._advertised
            what = f"the application {self._application}" if address is None else f"the address {address}"
            key = "application" if address is None else "advertised"
            hint = f"run only one of them, or give each its own [serve.streams] {key}"
            self.error = ChangelogError(Kind.IN_USE, f"another process took over {what}", hint=hint)
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

    def _was_taken_over(self, thread: str) -> bool:
        """Returns whether another process is in the group under a name of this one. Waits until Kafka can tell.

        Kafka also fences a thread that nobody has replaced: the group's coordinator can fail after it has given the
        thread a new id, and before the thread has received this id.
        """
        own_clients = thread.partition(_THREAD)[0]
        while not self._ending.is_set():
            try:
                members = self._find_members()
            except ChangelogError as error:
                _log.warning("cannot find out whether another process took over", error=str(error))
                self._ending.wait(AGAIN_S)
            else:
                clients = [client for name, client in members.items() if name.startswith(self._member)]
                return not all(client.startswith(own_clients) for client in clients)
        return False


def text_of(error: Any) -> str:
    """Returns the messages of a Java exception and of its causes, in one line."""
    texts: list[str] = []
    while error is not None and len(texts) < 5:
        texts.append(" ".join(str(error.toString()).split()))
        error = error.getCause()
    return ": ".join(texts)
