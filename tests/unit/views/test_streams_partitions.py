"""Tests how an instance reads the partitions of another instance over HTTP. No Java runs here."""

import http.client
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from starlette.types import ASGIApp

from changelog.connectors.config import ServeConfig
from changelog.connectors.config.views import StreamsConfig
from changelog.connectors.kafka.offsets import Part
from changelog.connectors.servers.certificates import CA, CERTIFICATE, KEY, write_certificates
from changelog.connectors.views.http.app import SURFACE
from changelog.connectors.views.http.instances import QUESTION_BYTES_MAX, InstanceApi
from changelog.connectors.views.served import INSTANCES, Completeness
from changelog.connectors.views.streams import opening, partitions
from changelog.connectors.views.streams.partitions import (
    SCAN_BYTES,
    OtherInstances,
    OwnPartitions,
    Partitions,
    read_question,
)
from changelog.connectors.views.streams.placement import Need
from changelog.connectors.views.streams.tables import RestoringError, restoring
from changelog.connectors.web.serving import Serving, served
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from tests.patience import PATIENCE_S, until

TOKEN = "the-token-of-instances"


def at(offset: int) -> Need:
    return Need(offset, offset)


class Tables:
    """The tables of an instance, with the `messages` of one partition. If there is an `owner`, the partition belongs to
    the instance at that address. The instances at `standbys` have copies.
    """

    def __init__(self, messages: dict[bytes, bytes], owner: str | None = None, standbys: Sequence[str] = ()) -> None:
        self.messages, self.owner, self.standbys, self.offset = messages, owner, standbys, 10

    def other_owner(self, *_: object) -> str | None:
        return self.owner

    def other_standbys(self, *_: object) -> Sequence[str]:
        return self.standbys

    def part(self, table: str, number: int) -> Part:
        return f"booking.{table}", number

    def has_at_hand(self, _table: str, _: int, need: Need) -> bool:
        return self.owner is None and need.offset <= self.offset

    def get_batch(self, table: str, _: int, keys: Sequence[bytes], need: Need | None) -> Sequence[bytes | None]:
        if need is not None and need.offset > self.offset:
            raise restoring(table)
        return [self.messages.get(key) for key in keys]

    def scan(self, _table: str, _: int, begin: bytes, _need: Need) -> Generator[tuple[bytes, bytes], None, None]:
        yield from sorted(pair for pair in self.messages.items() if pair[0] >= begin)


class Instance:
    """An instance that runs at `address`."""

    def __init__(self) -> None:
        self.tables = Tables({b"%04d" % number: b"x" for number in range(250)})
        self.address = ""
        self.standby: Completeness | None = None

    def partitions(self) -> Partitions:
        return Partitions(cast(Any, self.tables), lambda _: self.standby)


@contextmanager
def running(instance: Instance, settings: ServeConfig | None = None) -> Iterator[Serving]:
    async def no_api(scope: object, receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def make_app(*_: object) -> ASGIApp:
        return InstanceApi(no_api, token=TOKEN, answer=lambda body: instance.partitions().answer(read_question(body)))

    with served(settings or ServeConfig(port=0), SURFACE, make_app) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        until(lambda: server.server.started, "the instance does not start")
        instance.address = urlsplit(server.address).netloc
        try:
            yield server
        finally:
            server.server.should_exit = True
            thread.join(PATIENCE_S)


def break_connections(server: Serving) -> None:
    """Ends all connections, as a crash of the instance does."""
    for connection in list(server.server.server_state.connections):
        connection.loop.call_soon_threadsafe(connection.transport.abort)
    until(lambda: not server.server.server_state.connections, "a connection stays")


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    instance = Instance()
    with running(instance):
        yield instance


@pytest.fixture
def reader(instance: Instance) -> Iterator[Partitions]:
    """The partitions, as an instance without any partition of its own reads them."""
    with closing(seen_by(Tables({}, instance.address))) as reader:
        yield reader


def seen_by(tables: Tables, *, token: str = TOKEN, standby: Completeness | None = None) -> Partitions:
    """Returns the partitions, as an instance with these tables reads them."""
    return Partitions(cast(Any, tables), lambda _: standby, OtherInstances(token))


def refusal(reader: Partitions, offset: int = 0) -> ChangelogError:
    with pytest.raises(ChangelogError) as caught:
        reader.get_batch("order", 0, [b"0001"], at(offset))
    assert "\n" not in str(caught.value)
    return caught.value


def test_own_partitions_are_read_if_they_are_here_and_new_enough(instance: Instance) -> None:
    own = OwnPartitions(cast(Any, instance.tables))
    assert own.get_batch("order", 0, [b"0001"], at(10)) == [b"x"]
    assert next(iter(own.scan("order", 0, b"", at(10)))) == (b"0000", b"x")
    elsewhere = OwnPartitions(cast(Any, Tables({}, instance.address)))
    for partitions_without, need in ((own, at(11)), (elsewhere, at(10))):
        with pytest.raises(RestoringError):
            partitions_without.get_batch("order", 0, [b"0001"], need)
        with pytest.raises(RestoringError):
            partitions_without.scan("order", 0, b"", need)


def test_messages_of_another_instance_are_read(instance: Instance, reader: Partitions) -> None:
    assert reader.get_batch("order", 0, [b"0001", b"absent", b"0002"], at(10)) == [b"x", None, b"x"]
    for begin in (b"", b"0149", b"0150", b"0249", b"1"):
        expected = list(instance.tables.scan("order", 0, begin, at(0)))
        assert list(reader.scan("order", 0, begin, at(0))) == expected
    with closing(cast(Any, reader.scan("order", 0, b"", at(0)))) as scan:
        assert next(scan) == (b"0000", b"x")


def test_large_messages_come_in_several_answers(instance: Instance, reader: Partitions) -> None:
    messages = instance.tables.messages
    instance.tables.messages = {b"%d" % number: b"x" * (SCAN_BYTES // 2) for number in range(5)}
    assert list(reader.scan("order", 0, b"", at(0))) == sorted(instance.tables.messages.items())
    instance.tables.messages = messages


def test_an_instance_that_has_not_reached_the_offset_refuses(instance: Instance, reader: Partitions) -> None:
    error = refusal(reader, offset=11)
    text = f"the instance {instance.address}, which has these rows: the rows of order are being restored from Kafka"
    assert (error.kind, error.message) == (Kind.PRECONDITION, text)


def test_another_token_is_refused(instance: Instance) -> None:
    with closing(seen_by(Tables({}, instance.address), token="another-token-entirely")) as reader:
        error = refusal(reader)
    assert error.kind is Kind.ACCESS
    assert "give all instances the same [serve.streams] instance_token" in str(error)
    assert "another-token" not in repr(OtherInstances("another-token-entirely"))


def test_invalid_questions_are_refused(instance: Instance) -> None:
    with closing(http.client.HTTPConnection(instance.address, timeout=PATIENCE_S)) as connection:

        def status(method: str, body: bytes) -> int:
            connection.request(method, INSTANCES, body, {"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            answer.read()
            return answer.status

        assert status("GET", b"") == 405
        assert status("POST", b"{") == 503
        assert status("POST", b"x" * (QUESTION_BYTES_MAX + 1)) == 413


def test_an_instance_that_does_not_answer_is_not_asked_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "PAUSE_S", 0.2)
    instance = Instance()
    with running(instance):
        reader = seen_by(Tables({}, instance.address))
        assert reader.get_batch("order", 0, [b"0001"], at(0)) == [b"x"]
    error = refusal(reader)
    assert error.kind is Kind.CONNECTION
    assert error.message.startswith(f"the instance {instance.address} has these rows, and does not answer: [Errno 111]")
    assert refusal(reader).message.endswith("it did not answer a moment ago")
    time.sleep(0.2)
    assert "Errno 111" in refusal(reader).message
    reader.close()


def test_a_connection_that_was_closed_meanwhile_is_opened_again(instance: Instance, reader: Partitions) -> None:
    assert reader.get_batch("order", 0, [b"0001"], at(0)) == [b"x"]
    [connection] = cast(Any, reader)._others._idle[instance.address]
    connection.sock.shutdown(2)
    assert reader.get_batch("order", 0, [b"0001"], at(0)) == [b"x"]


def test_no_thread_fails_because_another_one_reached_the_instance(instance: Instance, reader: Partitions) -> None:
    class Times(dict[str, float]):
        """Loses an address as soon as it is looked up, as if another thread had removed it."""

        def __contains__(self, address: object) -> bool:
            return self.pop(cast(str, address), None) is not None

    cast(Any, reader)._others._paused_until_s = Times({instance.address: 0.0})
    assert reader.get_batch("order", 0, [b"0001"], at(0)) == [b"x"]


def test_a_connection_is_not_used_again_if_its_answer_was_not_read_to_the_end(
    instance: Instance, reader: Partitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(partitions, "ANSWER_BYTES_MAX", 5)
        assert refusal(reader).message.endswith("its answer has the status 200")
    assert reader.get_batch("order", 0, [b"0001"], at(0)) == [b"x"]


@pytest.mark.parametrize("authority", [None, CA])
def test_instances_use_tls_if_readers_do(tmp_path: Path, authority: str | None) -> None:
    write_certificates(tmp_path)
    settings = ServeConfig(
        port=0,
        streams=StreamsConfig(advertised="localhost:1", instance_token=TOKEN),
        tls_certificate=tmp_path / CERTIFICATE,
        tls_key=tmp_path / KEY,
        tls_client_ca=None if authority is None else tmp_path / authority,
    )
    instance = Instance()
    with running(instance, settings) as server:
        others = opening.other_instances(settings)
        with closing(Partitions(cast(Any, Tables({}, instance.address)), lambda _: None, others)) as reader:
            assert reader.get_batch("order", 0, [b"0001"], at(0)) == [b"x"]
            break_connections(server)
            assert reader.get_batch("order", 0, [b"0001"], at(0)) == [b"x"]
        with closing(seen_by(Tables({}, instance.address))) as reader:
            assert refusal(reader).kind is Kind.CONNECTION


def test_a_standby_answers_only_if_nothing_else_does_and_the_reader_allows_it(instance: Instance) -> None:
    standby, reached = Completeness(position=Position(1, 3, 0), at_s=30.0), list[Completeness]()
    here = Tables({b"0001": b"older"}, "127.0.0.1:1")
    with closing(seen_by(here, standby=standby)) as reader:
        assert refusal(reader).kind is Kind.CONNECTION
        assert reader.get_batch("order", 0, [b"0001"], at(99), reached.append) == [b"older"]
        assert list(reader.scan("order", 0, b"", at(99), reached.append)) == [(b"0001", b"older")]
        assert reached == [standby, standby]
        here.owner = instance.address
        assert reader.get_batch("order", 0, [b"0001"], at(0), reached.append) == [b"x"]
        assert len(reached) == 2


def test_the_standby_of_another_instance_is_asked(instance: Instance) -> None:
    reached = list[Completeness]()
    with closing(seen_by(Tables({}, "127.0.0.1:1", ["127.0.0.1:2", instance.address]))) as reader:

        def refused() -> str:
            with pytest.raises(ChangelogError) as caught:
                reader.get_batch("order", 0, [b"0001"], at(99), reached.append)
            return caught.value.message

        assert refused().startswith("the instance 127.0.0.1:1 has these rows, and does not answer")
        instance.standby = Completeness(position=None, at_s=7.0)
        assert reader.get_batch("order", 0, [b"0001"], at(99), reached.append) == [b"x"]
        assert reached == [instance.standby]
        instance.standby = None


def test_an_owner_that_was_a_standby_answers_like_a_standby_until_it_is_restored(
    instance: Instance, reader: Partitions
) -> None:
    reached = list[Completeness]()
    assert refusal(reader, offset=11).kind is Kind.PRECONDITION
    instance.standby = Completeness(position=None, at_s=7.0)
    assert reader.get_batch("order", 0, [b"0001"], at(11), reached.append) == [b"x"]
    assert reached == [instance.standby]
    instance.standby = None
