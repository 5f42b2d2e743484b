"""Reads a partition of a table: here, or at the instance that has it.

An instance sends another one a POST request (`INSTANCES`). Its body is a `PartitionQuestion`, that of the answer is a
`PartitionAnswer`, both in MessagePack. The instance that is asked reads only its own tables, so questions are never
forwarded. An answer has messages as they are in Kafka, with values that no view may show. So instances show each other
a token of their own, which no reader has.
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
from changelog.connectors.views.streams.tables import KafkaTables, restoring
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position

TIMEOUT_S: Final = 1.5
"""How long another instance may take to answer, in seconds."""

SPARED_S: Final = 1.0
"""For how long an instance that did not answer is not asked again, in seconds. After that, one request tries it.
Otherwise, requests that wait for it would take all threads that read.
"""

SCAN_MESSAGES, SCAN_BYTES = 100, 1 << 20
"""An answer ends after so many messages, and after the message with which it has so many bytes."""

ANSWER_BYTES_MAX: Final = 256 << 20

_GONE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)
"""Errors of a connection that the other side closed while it was not used."""


class PartitionQuestion(msgspec.Struct, kw_only=True):
    """Asks for the messages of `keys`, or for the messages from the key `begin` on, in a partition of a table that has
    all messages before `offset`. If `is_stale`, a standby is asked, whatever it has.
    """

    table: str
    partition: int
    offset: int
    keys: list[bytes] = []
    begin: bytes | None = None
    is_stale: bool = False


class PartitionAnswer(msgspec.Struct, kw_only=True):
    """The `values` of the keys, in their order, or `pairs` of keys and values. `next` is the key from which to ask for
    further pairs; None if there are none.

    If a standby answers, it is complete up to the position `stale_position`, and knew that at `stale_at_s`.
    """

    values: list[bytes | None] = []
    pairs: list[tuple[bytes, bytes]] = []
    next: bytes | None = None
    stale_position: str | None = None
    stale_at_s: float | None = None


OnStale = Callable[[Completeness], None]
"""Called if a standby has answered, with how far it is complete."""


class Partitions:
    """The partitions of all tables. `others` asks other instances; None if there are none. `standby_reached` returns
    how far a standby of this process is complete; None if there is no such standby.

    If nothing else can answer, and a caller gives `on_stale`, standbys are asked.
    """

    def __init__(
        self,
        tables: KafkaTables,
        standby_reached: Callable[[Part], Completeness | None],
        others: "Others | None" = None,
    ) -> None:
        self._tables, self._standby_reached, self._others = tables, standby_reached, others

    def get_batch(
        self, table: str, partition: int, keys: Sequence[bytes], offset: int, on_stale: OnStale | None = None
    ) -> Sequence[bytes | None]:
        """Returns the last message of each key in a partition, read in this order; None if there is none."""
        question = PartitionQuestion(table=table, partition=partition, offset=offset, keys=list(keys))
        return self._answer(question, on_stale).values

    def scan(
        self, table: str, partition: int, begin: bytes, offset: int, on_stale: OnStale | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yields the keys of a partition from `begin` on in their order, each with its last message."""
        if self._others is None:
            yield from self._tables.scan(table, partition, begin, offset)
            return
        next_begin: bytes | None = begin
        while next_begin is not None:
            question = PartitionQuestion(table=table, partition=partition, offset=offset, begin=next_begin)
            answer = self._answer(question, on_stale)
            yield from answer.pairs
            next_begin = answer.next

    def answer(self, body: bytes) -> bytes:
        """Answers the question of another instance. Raises ChangelogError: MALFORMED if it is not one, and the errors
        of `KafkaTables`.
        """
        try:
            question = msgspec.msgpack.decode(body, type=PartitionQuestion)
        except msgspec.DecodeError:
            raise ChangelogError(Kind.MALFORMED, "this is not a question of an instance") from None
        return msgspec.msgpack.encode(self._own_answer(question))

    def close(self) -> None:
        """Closes the connections to other instances."""
        if self._others is not None:
            self._others.close()

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

    def _stale_answer(self, question: PartitionQuestion, others: "Others") -> PartitionAnswer | None:
        """Returns the answer of a standby; None if none answers."""
        stale_question = msgspec.structs.replace(question, is_stale=True)
        with suppress(ChangelogError):
            return self._own_answer(stale_question)
        # The owner may be a standby that has just taken over, and cannot answer other questions yet.
        owner = self._tables.other_owner(question.table, question.partition)
        for address in (*self._tables.other_copies(question.table, question.partition), owner):
            with suppress(ChangelogError):
                if address is not None:
                    return others.ask(address, stale_question)
        return None

    def _own_answer(self, question: PartitionQuestion) -> PartitionAnswer:
        table, partition = question.table, question.partition
        if not question.is_stale:
            return self._read(question, question.offset)
        reached = self._standby_reached(self._tables.part(table, partition))
        if reached is None:
            raise restoring(table)
        answer = self._read(question, None)
        answer.stale_position = None if reached.position is None else str(reached.position)
        answer.stale_at_s = reached.at_s
        return answer

    def _read(self, question: PartitionQuestion, offset: int | None) -> PartitionAnswer:
        table, partition = question.table, question.partition
        if question.begin is None:
            return PartitionAnswer(values=list(self._tables.get_batch(table, partition, question.keys, offset)))
        pairs, size = [], 0
        scan = self._tables.scan(table, partition, question.begin, offset)
        for key, value in islice(scan, SCAN_MESSAGES):
            pairs.append((key, value))
            size += len(key) + len(value)
            if size >= SCAN_BYTES:
                break
        scan.close()
        is_cut = len(pairs) == SCAN_MESSAGES or size >= SCAN_BYTES
        return PartitionAnswer(pairs=pairs, next=pairs[-1][0] + b"\0" if is_cut else None)


@dataclass(slots=True)
class Others:
    """Asks other instances, which expect `token`. With `tls`, connections are encrypted. Any thread may use it."""

    token: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    _idle: dict[str, list[http.client.HTTPConnection]] = field(default_factory=lambda: defaultdict(list))
    _spared_until_s: dict[str, float] = field(default_factory=dict)

    def ask(self, address: str, question: PartitionQuestion) -> PartitionAnswer:
        """Returns the answer of the instance at an address. Raises ChangelogError: CONNECTION if it does not answer,
        PRECONDITION if it cannot answer now, ACCESS if it does not accept the token.
        """
        spared_until_s = self._spared_until_s.get(address)  # another thread may remove it at any moment
        if spared_until_s is not None:
            if time.monotonic() < spared_until_s:
                raise _unreachable(address, "it did not answer a moment ago")
            self._spared_until_s[address] = time.monotonic() + TIMEOUT_S
        try:
            status, body = self._post(address, msgspec.msgpack.encode(question))
        except (OSError, http.client.HTTPException) as error:
            self._spared_until_s[address] = time.monotonic() + SPARED_S
            raise _unreachable(address, str(error) or type(error).__name__) from error
        self._spared_until_s.pop(address, None)
        if status == HTTPStatus.OK:
            with suppress(msgspec.DecodeError):
                return msgspec.msgpack.decode(body, type=PartitionAnswer)
        raise _refused(address, status, body)

    def close(self) -> None:
        """Closes the connections that are not used."""
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
            with suppress(*_GONE):
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
        else:  # the answer ended early, or is too long: what is left of it would be taken for the next answer
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
