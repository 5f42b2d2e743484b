"""Tests that the Kafka sink encodes messages in Avro, and stores their schemas in a real schema registry.

The client library of the registry reads the messages, as any consumer would.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from decimal import Decimal as Number
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from changelog.connectors.kafka.registry import Registry
from changelog.connectors.servers.unprivileged import free_port
from changelog.connectors.sinks.kafka.admin.names import subject
from changelog.connectors.sinks.kafka.encoding.avro import AvroValues
from changelog.envelope.codec.avro_codec import AvroCodec
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.schemas import avro
from changelog.schemas.types import Decimal, Primitive, Struct
from tests.integration.site import Site
from tests.patience import PATIENCE_S
from tests.servers.registry import Registry as Server
from tests.unit.envelope.avro_states import before_contexts, written_before_contexts
from tests.unit.records import record

P = Primitive

OLD = Struct(fields=(("id", P.LONG), ("amount", Decimal(precision=10, scale=2))))
NEW = Struct(fields=(*OLD.fields, ("note", P.STRING)))
QUICK = {"max.retries": 0, "timeout": int(PATIENCE_S)}


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix that only one test uses, because all tests share the registry."""
    return str(request.node.name.replace("_", "-"))


@contextmanager
def client_of(url: str, *, auto_register: bool = False) -> Iterator[Registry]:
    with closing(Registry(url, QUICK, auto_register=auto_register)) as client:
        yield client


def test_a_value_that_ends_inside_the_id_of_its_schema_is_refused(registry: Server, prefix: str) -> None:
    with client_of(registry.url) as client:
        values = AvroValues(client, prefix)
        for size in range(1, 5):
            with pytest.raises(ChangelogError, match="a message ends inside the id of its schema") as caught:
                values.decode(bytes(size))
            assert caught.value.kind is Kind.MALFORMED


def test_an_unknown_schema_is_refused_until_it_is_registered(registry: Server, prefix: str) -> None:
    rows = batch.with_shapes(
        batch.from_records([record(Op.UPDATE, '{"id":42,"amount":"13.50"}', '{"id":42,"amount":"NaN"}')]),
        {"order": OLD},
    )
    with client_of(registry.url) as strict, client_of(registry.url, auto_register=True) as registering:
        values = AvroValues(strict, prefix, {"order": ["id"]})
        with pytest.raises(ChangelogError) as caught:
            values.encode(rows)
        assert caught.value.kind is Kind.PRECONDITION
        assert f"subject {prefix}.order-value" in caught.value.message
        assert "`changelog schemas register --yes`" in str(caught.value)
        assert caught.value.position == next(batch.records(rows)).envelope.provenance.source.position
        (registered_value,) = AvroValues(registering, prefix, {"order": ["id"]}).encode(rows)
        (value,) = values.encode(rows)
        assert value == registered_value
        assert values.decode(value) == next(batch.records(rows)).envelope
    with SchemaRegistryClient({"url": registry.url}) as client:
        context = SerializationContext(f"{prefix}.order", MessageField.VALUE)
        message = AvroDeserializer(client)(value, context)
    assert message is not None
    assert message["current"] == {"id": 42, "amount": Number("13.50")}
    assert message["original"] == {"id": 42, "amount": "NaN"}


def test_rows_with_other_columns_get_a_new_schema_version(registry: Server, prefix: str) -> None:
    old = batch.with_shapes(batch.from_records([record(Op.CREATE, '{"id":1,"amount":null}')]), {"order": OLD})
    new = batch.with_shapes(
        batch.from_records([record(Op.CREATE, '{"id":1,"amount":null,"note":"x"}')]), {"order": NEW}
    )
    with client_of(registry.url, auto_register=True) as client:
        values = AvroValues(client, prefix, {"order": ["id"]})
        first, second, repeated = (values.encode(rows)[0] for rows in (old, new, old))
        assert first == repeated
        assert first[1:5] != second[1:5]
        for rows, value in ((old, first), (new, second)):
            assert values.decode(value) == next(batch.records(rows)).envelope
    with SchemaRegistryClient({"url": registry.url}) as registry_client:
        assert registry_client.get_versions(subject(prefix, "order")) == [1, 2]


def test_a_batch_may_have_several_entities_and_records_without_columns(registry: Server, prefix: str) -> None:
    records = [
        record(Op.CREATE, '{"id":1,"amount":"1.00"}', entity="order"),
        record(Op.CREATE, '{"any":"thing"}', entity="dead"),
        record(Op.CREATE, '{"id":2,"amount":"2.00","note":null}', entity="bill"),
        record(Op.DELETE, None, '{"id":1,"amount":"1.00"}', entity="order"),
        record(Op.TRUNCATE, None, None, entity="bill"),
    ]
    rows = batch.with_shapes(batch.from_records(records), {"order": OLD, "bill": NEW})
    with client_of(registry.url, auto_register=True) as client:
        values = AvroValues(client, prefix, {"order": ["id"], "bill": ["id"]})
        encoded = values.encode(rows)
        assert [value[:1] for value in encoded] == [b"\0", b"{", b"\0", b"\0", b"\0"]
        assert [values.decode(value) for value in encoded] == [item.envelope for item in records]
        incomplete = batch.with_shapes(batch.from_records([record(Op.CREATE, '{"id":1,"note":1}')]), {"order": OLD})
        with pytest.raises(ChangelogError, match="entity order: column amount is missing, and is not listed"):
            values.encode(incomplete)
    assert values.encode(rows.slice(0, 0)) == []


def test_foreign_messages_are_errors(registry: Server, prefix: str) -> None:
    with client_of(registry.url) as client:
        values = AvroValues(client, prefix, {})
        other_id = client.register(f"{prefix}-other", {"type": "record", "name": "R", "fields": []})
        for value, kind in (
            (b"\0\0\0", Kind.MALFORMED),
            (b"\0" + other_id.to_bytes(4, "big"), Kind.MALFORMED),
            (b"\0\x7f\xff\xff\xff", Kind.PRECONDITION),
            (b"", Kind.MALFORMED),
        ):
            with pytest.raises(ChangelogError) as caught:
                values.decode(value)
            assert caught.value.kind is kind


def test_an_incompatible_schema_is_refused_by_the_registry(registry: Server, prefix: str) -> None:
    name = subject(prefix, "order")
    schema = avro.value_schema("order", OLD, ["id"], prefix)
    with client_of(registry.url) as client:
        assert client.look_up(name, schema) is None
        assert client.register(name, schema) == client.look_up(name, schema)
        with SchemaRegistryClient({"url": registry.url}) as registry_client:
            registry_client.set_compatibility(name, "FULL_TRANSITIVE")
        incompatible_schema = avro.value_schema("order", Struct(fields=(("id", P.STRING),)), ["id"], prefix)
        assert client.is_compatible(name, incompatible_schema) is False
        assert client.is_compatible(name, avro.value_schema("order", NEW, ["id"], prefix)) is True
        with pytest.raises(ChangelogError) as caught:
            client.register(name, incompatible_schema)
    assert caught.value.kind is Kind.PRECONDITION
    assert "\n" not in str(caught.value)


def test_a_topic_that_an_older_version_began_is_continued(registry: Server, prefix: str) -> None:
    """In the older version's schema, a provenance stamp has no context. The registry accepts the new schema as
    compatible, and messages of both schemas can be read.
    """
    name, schema = subject(prefix, "order"), avro.value_schema("order", OLD, ["id"], prefix)
    first = record(Op.CREATE, '{"id":1,"amount":"13.50"}', commit=1)
    stamp = replace(first.envelope.provenance.stamp, context='{"n": 1.10}')
    second = record(Op.CREATE, '{"id":2,"amount":null}', commit=2)
    second = replace(
        second, envelope=replace(second.envelope, provenance=replace(second.envelope.provenance, stamp=stamp))
    )
    rows = batch.with_shapes(batch.from_records([second]), {"order": OLD})
    with client_of(registry.url) as strict, client_of(registry.url, auto_register=True) as registering:
        id_ = strict.register(name, before_contexts(schema))
        with SchemaRegistryClient({"url": registry.url}) as registry_client:
            registry_client.set_compatibility(name, "FULL_TRANSITIVE")
        body = written_before_contexts(AvroCodec(schema).encode(first.envelope), schema)
        values = AvroValues(strict, prefix, {"order": ["id"]})
        assert values.decode(b"\0" + id_.to_bytes(4, "big") + body) == first.envelope
        with pytest.raises(ChangelogError, match="changelog schemas register --yes"):
            values.encode(rows)
        assert strict.is_compatible(name, schema) is True
        (value,) = AvroValues(registering, prefix, {"order": ["id"]}).encode(rows)
        assert values.decode(value) == second.envelope


def test_an_unreachable_registry_is_an_error_without_the_password(registry: Server) -> None:
    with client_of(f"http://user:secret@127.0.0.1:{free_port()}") as client, pytest.raises(ChangelogError) as caught:
        client.schema(1)
    assert caught.value.kind is Kind.CONNECTION
    assert "secret" not in str(caught.value)
    with client_of(registry.url + "/nowhere") as client, pytest.raises(ChangelogError) as caught:
        client.look_up("a", "string")
    assert caught.value.kind is Kind.PRECONDITION
    assert caught.value.hint is not None
    assert "[sink] registry" in caught.value.hint


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = int(self.path.rpartition("/")[2].partition("?")[0])
        body = b"<html>" if status == 200 else json.dumps({"error_code": status, "message": "no\nway"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class has this name
        pass


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Kind.ACCESS), (403, Kind.ACCESS), (429, Kind.CONNECTION), (500, Kind.CONNECTION), (200, Kind.PRECONDITION)],
)
def test_the_kind_of_an_error_depends_on_the_answer_of_the_registry(status: int, kind: Kind) -> None:
    with HTTPServer(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with client_of(f"http://127.0.0.1:{server.server_port}") as client, pytest.raises(ChangelogError) as caught:
                client.schema(status)
        finally:
            server.shutdown()
            thread.join()
    assert caught.value.kind is kind
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("localhost:8081", {}),
        ("http://localhost:8081", {"no.such.option": 1}),
        ("http://localhost:8081", {"ssl.ca.location": "/no/such/file"}),
    ],
)
def test_wrong_options_are_usage_errors(url: str, options: dict[str, object]) -> None:
    with pytest.raises(ChangelogError) as caught:
        Registry(url, options)
    assert caught.value.kind is Kind.USAGE
    assert "[sink] registry" in caught.value.message


def test_schemas_register_registers_only_with_yes(
    registry: Server, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(database, tmp_path)
    site.sql(
        "CREATE TABLE orders (id bigint PRIMARY KEY, amount numeric(10,2), secret text)",
        "CREATE TABLE rooms (no text PRIMARY KEY)",
    )
    configuration = f"""
name = "{site.name.replace("_", "-")}"
source = {{ kind = "postgres", dsn = {json.dumps(database)} }}
sink = {{ kind = "kafka", bootstrap_servers = "localhost:1", codec = "avro", registry = "{registry.url}" }}
tables = {{ include = ["public.*"] }}
entities.orders.mask = {{ secret = "sha256" }}
mask.key = "0123456789abcdef"
"""
    site.config.write_text(configuration, "utf-8")

    def verdicts(*words: str, code: int = 0) -> list[dict[str, object]]:
        capsys.readouterr()
        assert site.call("schemas", "register", *words, "--json") == (code, [])
        output: list[dict[str, object]] = msgspec.json.decode(capsys.readouterr().out)
        return output

    preview = verdicts()
    prefix = site.name.replace("_", "-")
    assert [(verdict["subject"], verdict["state"], verdict["id"]) for verdict in preview] == [
        (f"{prefix}.{topic}-value", "new", None) for topic in ("orders", "rooms", "orders.delta", "rooms.delta")
    ]
    assert [verdict["state"] for verdict in verdicts("orders", "--yes")] == ["registered", "registered"]
    assert [verdict["state"] for verdict in verdicts()] == ["registered", "new", "registered", "new"]
    assert verdicts()[0]["schema"] == preview[0]["schema"]
    columns = {column.name: column.type for column in avro.columns(preview[0]["schema"])}
    assert columns == {"id": P.LONG, "amount": Decimal(precision=10, scale=2), "secret": P.STRING}
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.set_compatibility(str(preview[0]["subject"]), "FULL")
    site.sql("ALTER TABLE orders ADD note text")
    assert [verdict["state"] for verdict in verdicts("orders")] == ["compatible", "registered"]
    site.sql("ALTER TABLE orders ALTER amount TYPE boolean USING true")
    assert [verdict["state"] for verdict in verdicts("--yes", code=1)] == ["incompatible", "new", "registered", "new"]
    assert site.call("schemas", "register") == (1, [])
    assert "nothing was registered" in capsys.readouterr().out
    assert 'there is no entity "nothing"' in site.refused("schemas", "register", "nothing", code=2)
