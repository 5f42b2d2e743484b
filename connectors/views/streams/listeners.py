"""Makes the objects to which Kafka Streams reports its state, errors, and how far it has restored stores.

Kafka Streams reports a partition as a Java object, which names the partition of the store's changelog. `part_of`
returns the partition of the table's topic for such an object.
"""

from collections.abc import Callable
from typing import Any

import jpype
import structlog

from changelog.connectors.kafka.offsets import Part
from changelog.connectors.views.streams.failures import text_of
from changelog.connectors.views.streams.placement import Placement
from changelog.connectors.views.streams.restoration import Restoration

_log = structlog.get_logger("views")


def state_listener(take: Callable[[str], None]) -> Any:
    """Returns the listener for the state of Kafka Streams; `take` gets the name of each new state."""

    @jpype.JImplements("org.apache.kafka.streams.KafkaStreams$StateListener")
    class StateListener:
        @jpype.JOverride
        def onChange(self, new: Any, _old: Any) -> None:  # noqa: N802 - Java's name
            take(str(new.name()))

    return StateListener()


def failure_handler(errors: Any, again_after: Callable[[str, str], bool]) -> Any:
    """Returns the handler for errors that end a thread. `errors` is the package with Kafka Streams' errors.

    `again_after` gets the text of the error and the name of the thread. It returns whether the thread is replaced.
    """
    handler = errors.StreamsUncaughtExceptionHandler
    answers = jpype.JClass(f"{handler.class_.getName()}$StreamThreadExceptionResponse")

    @jpype.JImplements(handler)
    class FailureHandler:
        @jpype.JOverride
        def handle(self, error: Any) -> Any:
            thread = str(jpype.java.lang.Thread.currentThread().getName())
            return answers.REPLACE_THREAD if again_after(text_of(error), thread) else answers.SHUTDOWN_CLIENT

    return FailureHandler()


def restore_listener(placement: Placement, restoration: Restoration, part_of: Callable[[Any], Part]) -> Any:
    """Returns the listener for tables that this process serves."""

    @jpype.JImplements("org.apache.kafka.streams.processor.StateRestoreListener")
    class RestoreListener:
        @jpype.JOverride
        def onRestoreStart(self, part: Any, table: Any, begin: Any, end: Any) -> None:  # noqa: N802 - Java's name
            placement.restoring(part_of(part), int(end))
            restoration.begin(part_of(part), int(begin), int(end))
            if (count := int(end) - int(begin)) > 0:
                _log.info("restoring", table=str(table), partition=int(part.partition()), offsets=count)

        @jpype.JOverride
        def onBatchRestored(self, part: Any, _table: Any, last: Any, count: Any) -> None:  # noqa: N802
            restoration.advance(part_of(part), int(last), int(count))

        @jpype.JOverride
        def onRestoreEnd(self, part: Any, table: Any, count: Any) -> None:  # noqa: N802
            placement.restored(part_of(part))
            restoration.end(part_of(part))
            if int(count) > 0:
                _log.info("restored", table=str(table), partition=int(part.partition()), messages=int(count))

        @jpype.JOverride
        def onRestoreSuspended(self, part: Any, _table: Any, _count: Any) -> None:  # noqa: N802
            placement.restoration_ended(part_of(part))
            restoration.end(part_of(part))

    return RestoreListener()


def standby_listener(placement: Placement, part_of: Callable[[Any], Part]) -> Any:
    """Returns the listener for tables of which this process is a standby."""

    @jpype.JImplements("org.apache.kafka.streams.processor.StandbyUpdateListener")
    class StandbyListener:
        @jpype.JOverride
        def onUpdateStart(self, part: Any, _table: Any, begin: Any) -> None:  # noqa: N802 - Java's name
            placement.standby_advanced(part_of(part), int(begin))

        @jpype.JOverride
        def onBatchLoaded(self, part: Any, _table: Any, _task: Any, last: Any, _count: Any, _end: Any) -> None:  # noqa: N802
            placement.standby_advanced(part_of(part), int(last) + 1)

        @jpype.JOverride
        def onUpdateSuspended(self, part: Any, _table: Any, _last: Any, _end: Any, reason: Any) -> None:  # noqa: N802
            if str(reason.name()) != "PROMOTED":
                placement.standby_ended(part_of(part))

    return StandbyListener()
