"""Tests that executors decode Kafka's messages into the published rows. An error must be one line that names the
message.
"""

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.kafka.java_client import java_options
from changelog.connectors.sinks.kafka.encoding.messages import JSON, headers
from changelog.envelope.codec.avro_codec import AvroCodec
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Record
from changelog.schemas.avro import value_schema
from changelog.schemas.types import Primitive, Struct
from changelog.spark_jobs.reading.decode_kafka import DECODED, MESSAGE_COLUMNS, OFFSET, PARTITION, decoder
from changelog.spark_jobs.reading.executor_registry import ExecutorRegistry
from tests.unit import records as sample
from tests.unit.envelope.strategies import records

MESSAGE = pa.schema(
    [
        ("topic", pa.utf8()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("moves", pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))),
    ]
)
SCHEMA = value_schema("order", Struct(fields=(("id", Primitive.LONG),)), ["id"], "booking")


def messages(rows: pa.RecordBatch, values: list[bytes]) -> pa.RecordBatch:
    """Returns the messages of the rows, as Spark's Kafka source passes them to the decoder."""
    moves = [
        [{"key": k, "value": v} for k, v in row_headers if k.startswith("moved")] or None
        for row_headers in headers(rows)
    ]
    columns = [
        [f"booking.{entity}" for entity in rows.column("entity").to_pylist()],
        rows.column("partition"),
        range(rows.num_rows),
        [key.encode() for key in rows.column("key").to_pylist()],
        values,
        moves,
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, MESSAGE, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE)


def decoded(batch_: pa.RecordBatch, registry: ExecutorRegistry | None = None) -> pa.RecordBatch:
    [rows] = decoder("booking", registry)([batch_])
    return rows


@given(st.lists(records(), max_size=5))
def test_json_is_decoded_into_the_same_rows(published: list[Record]) -> None:
    rows = batch.from_records(published)
    result = decoded(messages(rows, JSON.encode(rows)))
    assert MESSAGE.names == list(MESSAGE_COLUMNS)
    assert result.schema == DECODED
    assert result.drop_columns([PARTITION, OFFSET]).to_pylist() == rows.to_pylist()
    assert result.column(PARTITION) == rows.column("partition")
    assert result.column(OFFSET).to_pylist() == list(range(len(published)))


def test_numbers_and_blanks_keep_their_text() -> None:
    states = '{"a": 1e+20, "b":-0, "c": 12345678901234567890123.10, "é":"\\u00e9", "s":"\\ud800"}'
    rows = batch.from_records([sample.record(Op.UPDATE, states, states)])
    result = decoded(messages(rows, JSON.encode(rows)))
    assert result.column("current").to_pylist() == result.column("original").to_pylist() == [states]


def test_an_event_without_a_position_gets_the_offset_of_its_message() -> None:
    value = (
        b'{"provenance":{"apiVersion":"v2","serviceName":"web","identifier":"i","source":{"connector":"producer",'
        b'"name":"web","database":"","table":"","op":"create","transaction":"","committedAt":"2026-11-21T03:10:02Z",'
        b'"id":"7"}},"current":{"clicked":true}}'
    )
    rows = batch.from_records([sample.record(Op.CREATE, "{}"), sample.record(Op.CREATE, "{}")])
    result = decoded(messages(rows, [value, value]))
    assert result.column("position").to_pylist() == [f"00000000/{n:016X}/00000000" for n in (0, 1)]
    positions = [msgspec.json.decode(text)["source"]["position"] for text in result.column("provenance").to_pylist()]
    assert positions == result.column("position").to_pylist()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "is not an envelope in JSON"),
        (b"{}", "is not an envelope in JSON"),
        (b'{"provenance":{"secret":1}}', "is not an envelope in JSON"),
        (b"\0\0\0\0\1\2", 'codec = "avro"'),
    ],
)
def test_a_message_that_is_no_envelope_is_named(value: bytes, message: str) -> None:
    rows = batch.from_records([sample.record(Op.CREATE, "{}")])
    with pytest.raises(ChangelogError, match=r"booking\.order, partition 0, offset 0") as caught:
        decoded(messages(rows, [value]))
    assert caught.value.kind is Kind.MALFORMED
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


class _Answers(http.server.BaseHTTPRequestHandler):
    """A registry that records the paths of all requests. Clients with the password get schema 1, and an HTML page as
    schema 2.
    """

    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        if self.headers["Authorization"] != "Basic dTpw":
            self.send_error(401)
        elif self.path == "/api/schemas/ids/1":
            body = msgspec.json.encode({"schema": msgspec.json.encode(SCHEMA).decode()})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)
        elif self.path == "/api/schemas/ids/2":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")
        else:
            self.send_error(404)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    _Answers.requests = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}/api"
        server.shutdown()
        thread.join()


def test_avro_is_decoded_and_its_schema_is_requested_once(address: str) -> None:
    published = [sample.record(Op.CREATE, f'{{"id":{n}}}', commit=n) for n in range(3)]
    rows = batch.from_records(published)
    codec = AvroCodec(SCHEMA)
    values = [b"\0\0\0\0\1" + codec.encode(item.envelope) for item in published[:2]] + JSON.encode(rows)[2:]
    registry = ExecutorRegistry.of_options(f"http://127.0.0.1:1,http://u:p@{address}", {})
    for _ in range(2):
        result = decoded(messages(rows, values), registry)
        assert result.drop_columns([PARTITION, OFFSET]).to_pylist() == rows.to_pylist()
    assert _Answers.requests == ["/api/schemas/ids/1"]


@pytest.mark.parametrize(
    ("id_", "login", "kind", "message"),
    [
        (9, "u:p", Kind.PRECONDITION, "schema 9 is unknown to the registry http://127.0.0.1"),
        (2, "u:p", Kind.PRECONDITION, "the server did not answer as a schema registry does"),
        (1, "u:wrong", Kind.ACCESS, "HTTP 401"),
        (1, None, Kind.ACCESS, "HTTP 401"),
    ],
)
def test_an_error_of_a_registry_is_one_line(
    address: str, id_: int, login: str | None, kind: Kind, message: str
) -> None:
    registry = ExecutorRegistry.of_options(f"http://{address}", {"basic.auth.user.info": login} if login else {})
    with pytest.raises(ChangelogError) as caught:
        registry.schema(id_)
    assert caught.value.kind is kind
    assert message in str(caught.value)
    assert "wrong" not in str(caught.value)


def test_a_registry_that_is_down_is_reported_in_one_line() -> None:
    with pytest.raises(ChangelogError, match=r"asking for schema 1 at the registry http://127\.0\.0\.1:1: ") as caught:
        ExecutorRegistry.of_options("http://127.0.0.1:1", {"timeout": 1}).schema(1)
    assert caught.value.kind is Kind.CONNECTION
    with pytest.raises(ChangelogError, match=r"jobs do not support bearer\.auth\.issuer\.endpoint\.url"):
        ExecutorRegistry.of_options("http://127.0.0.1:1", {"bearer.auth.issuer.endpoint.url": "x"})


def test_the_clients_options_are_translated_for_java(tmp_path: Any) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----")
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": 'a"b',
        "sasl.password": "p\\q",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.endpoint.identification.algorithm": "none",
        "linger.ms": "5",
    }
    assert java_options(options) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="a\\"b" password="p\\\\q";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert java_options({"sasl.mechanism": "PLAIN", "sasl.username": "u"})["sasl.jaas.config"].count("plain.Plain") == 1
    with pytest.raises(ChangelogError, match=r"has no sasl\.oauthbearer\.client\.secret") as caught:
        java_options({"sasl.oauthbearer.client.secret": "hidden"})
    assert "hidden" not in str(caught.value)
    with pytest.raises(ChangelogError, match="cannot be read"):
        java_options({"ssl.ca.location": str(tmp_path / "none.pem")})
