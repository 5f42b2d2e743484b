"""Reads the partitions of tables: in this process, or over HTTP from the instance that has a partition.

One instance asks another one with a POST request to the address `INSTANCES`. The body of the request is a
`PartitionQuestion`, and the body of the answer is a `PartitionAnswer`, both in MessagePack. The instance that is asked
reads only its own tables, so it never forwards a question. Answers have messages as they are in Kafka, including values
that no view shows. So instances identify themselves with a token of their own, which no reader has.
"""

import http.client
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from typing import Any, Final

import msgspec

from changelog.connectors.kafka.offsets import Part
from changelog.connectors.views.served import INSTANCES, Completeness
from changelog.connectors.views.streams.placement import Need
from changelog.connectors.views.streams.tables import KafkaTables, restoring
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position

TIMEOUT_S: Final = 1.5
"""How long another instance may take to answer, in seconds."""

PAUSE_S: Final = 1.0
"""For this many seconds, no request asks an instance that did not answer. After that, one request asks it again.
Without this pause, requests that wait for the instance could occupy all threads that read.
"""

SCAN_MESSAGES, SCAN_BYTES = 100, 1 << 20
"""An answer to a scan ends when it has this many messages, or at least this many bytes."""

ANSWER_BYTES_MAX: Final = 256 << 20

_CLOSED_ERRORS = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)
"""Errors of a connection that the other side closed while it was idle."""


OnStale = Callable[[Completeness], None]
"""Called after a standby has answered. The argument says how far the standby is complete."""


class OwnPartitions:
    """Reads the partitions that this process has, and never waits for a commit or for another instance. `get_batch` and
    `scan` are like those of `Partitions`, but raise RestoringError if this process does not have what is needed.
    """

    def __init__(self, tables: KafkaTables) -> None:
        self._tables = tables

    def has(self, table: str, partition: int, need: Need) -> bool:
        """Returns whether this process is known to have a partition with all messages that are needed."""
        return self._tables.has_at_hand(table, partition, need)

    def get_batch(
        self, table: str, partition: int, keys: Sequence[bytes], need: Need, _on_stale: OnStale | None = None
    ) -> Sequence[bytes | None]:
        self._refuse_missing(table, partition, need)
        return self._tables.get_batch(table, partition, keys, need)

    def scan(
        self, table: str, partition: int, begin: bytes, need: Need, _on_stale: OnStale | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self._refuse_missing(table, partition, need)
        return self._tables.scan(table, partition, begin, need)

    def _refuse_missing(self, table: str, partition: int, need: Need) -> None:
        if not self._tables.has_at_hand(table, partition, need):
            raise restoring(table)


class PartitionQuestion(msgspec.Struct, kw_only=True):
    """Asks for messages in a partition of a table: for the last message of each of the `keys`, or, if `begin` is given,
    for the last message of each key from `begin` on.

    `application` is the application that has the table; empty for the main one. The instance must have what `Need`
    describes: all messages before `offset`, or, if the store has a changelog of its own, a store that was restored up
    to `store_offset`. If `is_stale`, a standby is asked, and both offsets are ignored.
    """

    table: str
    partition: int
    offset: int
    store_offset: int | None = None
    application: str = ""
    keys: list[bytes] = []
    begin: bytes | None = None
    is_stale: bool = False

    @property
    def need(self) -> Need | None:
        """What the instance must have; None if a standby may answer."""
        if self.is_stale:
            return None
        return Need(self.offset, self.offset if self.store_offset is None else self.store_offset)


class PartitionAnswer(msgspec.Struct, kw_only=True):
    """The answer has the `values` of the keys, in the order of the question, or `pairs` of keys and values. `next` is
    the key from which to ask for further pairs; None if there are none.

    If a standby answers, `stale_position` and `stale_at_s` say how far it is complete, as in `Completeness`.
    """

    values: list[bytes | None] = []
    pairs: list[tuple[bytes, bytes]] = []
    next: bytes | None = None
    stale_position: str | None = None
    stale_at_s: float | None = None


class Partitions:
    """Reads the partitions of all tables. `others` asks other instances; it is None if there are no others.

    `standby_reached` returns how far this process's standby of a partition is complete; None if it has no standby. If
    the instance that has a partition cannot answer, standbys are asked, but only if the caller gives `on_stale`.
    Questions to other instances name the `application`.
    """

    def __init__(
        self,
        tables: KafkaTables,
        standby_reached: Callable[[Part], Completeness | None],
        others: "OtherInstances | None" = None,
        application: str = "",
    ) -> None:
        self._tables, self._standby_reached, self._others = tables, standby_reached, others
        self._application = application

    def get_batch(
        self, table: str, partition: int, keys: Sequence[bytes], need: Need, on_stale: OnStale | None = None
    ) -> Sequence[bytes | None]:
        """Reads keys in this order, and returns the last message of each key in a partition; None if it has none."""
        question = self._question(table, partition, need)
        question.keys = list(keys)
        return self._answer(question, on_stale).values

    def scan(
        self, table: str, partition: int, begin: bytes, need: Need, on_stale: OnStale | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yields the keys of a partition from `begin` on in their order, each with its last message."""
        if self._others is None:
            yield from self._tables.scan(table, partition, begin, need)
            return
        next_begin: bytes | None = begin
        while next_begin is not None:
            question = self._question(table, partition, need)
            question.begin = next_begin
            answer = self._answer(question, on_stale)
            yield from answer.pairs
            next_begin = answer.next

    def answer(self, question: PartitionQuestion) -> bytes:
        """Answers the question of another instance. Raises the errors of `KafkaTables`."""
        return msgspec.msgpack.encode(self._own_answer(question))

    def close(self) -> None:
        """Closes the connections to other instances."""
        if self._others is not None:
            self._others.close()

    def _question(self, table: str, partition: int, need: Need) -> PartitionQuestion:
        return PartitionQuestion(
            table=table,
            partition=partition,
            offset=need.offset,
            store_offset=need.store_offset,
            application=self._application,
        )

    def _answer(self, question: PartitionQuestion, on_stale: OnStale | None) -> PartitionAnswer:
        if self._others is None:
            return self._own_answer(question)
        try:
            owner = self._tables.other_owner(question.table, question.partition)
            return self._own_answer(question) if owner is None else self._others.ask(owner, question)
        except ChangelogError:
            answer = None if on_stale is None else self._stale_answer(question, self._others)
            if answer is None or on_stale is None:
                raise
            position = None if answer.stale_position is None else Position.parse(answer.stale_position)
            on_stale(Completeness(position=position, at_s=answer.stale_at_s))
            return answer

    def _stale_answer(self, question: PartitionQuestion, others: "OtherInstances") -> PartitionAnswer | None:
        """Returns the answer of a standby; None if no standby answers."""
        stale_question = msgspec.structs.replace(question, is_stale=True)
        with suppress(ChangelogError):
            return self._own_answer(stale_question)
        # The owner may be a standby that has just taken over, and cannot answer other questions yet.
        owner = self._tables.other_owner(question.table, question.partition)
        for address in (*self._tables.other_standbys(question.table, question.partition), owner):
            with suppress(ChangelogError):
                if address is not None:
                    return others.ask(address, stale_question)
        return None

    def _own_answer(self, question: PartitionQuestion) -> PartitionAnswer:
        table, partition = question.table, question.partition
        if not question.is_stale:
            return self._read(question)
        reached = self._standby_reached(self._tables.part(table, partition))
        if reached is None:
            raise restoring(table)
        answer = self._read(question)
        answer.stale_position = None if reached.position is None else str(reached.position)
        answer.stale_at_s = reached.at_s
        return answer

    def _read(self, question: PartitionQuestion) -> PartitionAnswer:
        table, partition, need = question.table, question.partition, question.need
        if question.begin is None:
            return PartitionAnswer(values=list(self._tables.get_batch(table, partition, question.keys, need)))
        pairs, size = [], 0
        scan = self._tables.scan(table, partition, question.begin, need)
        for key, value in islice(scan, SCAN_MESSAGES):
            pairs.append((key, value))
            size += len(key) + len(value)
            if size >= SCAN_BYTES:
                break
        scan.close()
        is_cut = len(pairs) == SCAN_MESSAGES or size >= SCAN_BYTES
        return PartitionAnswer(pairs=pairs, next=pairs[-1][0] + b"\0" if is_cut else None)


def read_question(body: bytes) -> PartitionQuestion:
    """Returns the question of another instance. Raises ChangelogError (MALFORMED) if `body` is not a question."""
    try:
        return msgspec.msgpack.decode(body, type=PartitionQuestion)
    except msgspec.DecodeError:
        raise ChangelogError(Kind.MALFORMED, "this is not a question of an instance") from None


@dataclass(slots=True)
class OtherInstances:
    """Asks other instances. They require `token`. If `tls` is given, connections use TLS. Any thread may use this."""

    token: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    _idle: dict[str, list[http.client.HTTPConnection]] = field(default_factory=lambda: defaultdict(list))
    _paused_until_s: dict[str, float] = field(default_factory=dict)

    def ask(self, address: str, question: PartitionQuestion) -> PartitionAnswer:
        """Returns the answer of the instance at an address. Raises ChangelogError: CONNECTION if the instance does not
        answer, PRECONDITION if it cannot answer now, ACCESS if it does not accept the token.
        """
        paused_until_s = self._paused_until_s.get(address)  # another thread may remove it at any moment
        if paused_until_s is not None:
            if time.monotonic() < paused_until_s:
                raise _unreachable(address, "it did not answer a moment ago")
            self._paused_until_s[address] = time.monotonic() + TIMEOUT_S
        try:
            status, body = self._post(address, msgspec.msgpack.encode(question))
        except (OSError, http.client.HTTPException) as error:
            self._paused_until_s[address] = time.monotonic() + PAUSE_S
            raise _unreachable(address, str(error) or type(error).__name__) from error
        self._paused_until_s.pop(address, None)
        if status == HTTPStatus.OK:
            with suppress(msgspec.DecodeError):
                return msgspec.msgpack.decode(body, type=PartitionAnswer)
        raise _refused(address, status, body)

    def close(self) -> None:
        """Closes the idle connections."""
        for connections in list(self._idle.values()):
            while connections:
                connections.pop().close()

    def _post(self, address: str, body: bytes) -> tuple[int, bytes]:
        connections = self._idle[address]
        try:
            connection = connections.pop()
        except IndexError:
            connection = None
        if connection is not None:
            with suppress(*_CLOSED_ERRORS):
                return self._exchange(connection, connections, body)
        return self._exchange(self._connection(address), connections, body)

    def _exchange(
        self, connection: http.client.HTTPConnection, idle: list[http.client.HTTPConnection], body: bytes
    ) -> tuple[int, bytes]:
        try:
            connection.request("POST", INSTANCES, body, self._headers())
            answer = connection.getresponse()
            content = answer.read(ANSWER_BYTES_MAX)
        except BaseException:
            connection.close()
            raise
        if answer.isclosed():
            idle.append(connection)
        else:  # the answer was not read to its end: the rest would be read as the next answer
            connection.close()
        return answer.status, content

    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Content-Type": "application/vnd.msgpack"}

    def _connection(self, address: str) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        return http.client.HTTPSConnection(address, timeout=TIMEOUT_S, context=self.tls)


def _unreachable(address: str, reason: str) -> ChangelogError:
    return ChangelogError(
        Kind.CONNECTION,
        f"the instance {address} has these rows, and does not answer: {' '.join(reason.split())}",
        hint="try again; if it does not come back, another instance takes its rows over",
    )


def _refused(address: str, status: int, body: bytes) -> ChangelogError:
    if status == HTTPStatus.UNAUTHORIZED:
        hint = "give all instances the same [serve.streams] instance_token"
        return ChangelogError(Kind.ACCESS, f"the instance {address} does not accept our instance_token", hint=hint)
    error: Any = None
    with suppress(msgspec.DecodeError):
        error = msgspec.json.decode(body)
    reason = error.get("error") if isinstance(error, dict) else f"its answer has the status {status}"
    return ChangelogError(
        Kind.PRECONDITION, f"the instance {address}, which has these rows: {reason}", hint="try again in a moment"
    )
