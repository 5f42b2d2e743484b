"""`python -m tests.servers.debezium_events NAME FOLDER [FORM…]` captures change events of Debezium, as test inputs.

It runs a database, a Kafka broker, and Debezium in Kafka Connect. There is one connector for each form of events. The
forms, such as `plain` for JSON without schemas, are in `FORMS` of `debezium_postgres` and of `debezium_mysql`. NAME is
`postgres`, `mysql` or `mariadb`. Without a FORM, the program captures all forms. The messages of each connector are
stored in FOLDER/NAME.FORM.jsonl. The values that our own reader of the database publishes for the same rows are stored
in FOLDER/NAME.published.json.

Each line of a file is a schema or a message. A message refers to a schema by its number in the file. The schema of a
message, its payload, and all other texts are stored as they arrived, byte by byte.
"""

import json
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from changelog.connectors.servers.kafka import Broker, temporary_broker
from tests.servers import debezium_mysql, debezium_postgres
from tests.servers.connect import temporary_connect
from tests.servers.registry import temporary_registry

CACHE = Path(".cache")
WAIT_S_MAX = 180.0
LAST = "done"
"""The table into which the last change inserts a row."""

ID_BYTES = {"avro8": 8, "avroheaders": 0}
"""How many bytes of an Avro message hold the id of its schema, by the form of the events. In all other forms, the id
takes four bytes. 0 means that the id is in the headers.
"""

CONTEXT = "__debezium.context."
"""The prefix of headers that say which run of a connector sent the message."""

BEFORE, BETWEEN = '{"schema":', ',"payload":'
"""The text before the schema of a message, and the text between the schema and the payload."""

COMMON = {
    "tasks.max": "1",
    "topic.creation.default.partitions": "1",
    "topic.creation.default.replication.factor": "1",
    "poll.interval.ms": "50",
}


def main() -> None:
    """Captures the events of one database."""
    name, folder, forms = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    module = debezium_postgres if name == "postgres" else debezium_mysql
    folder.mkdir(parents=True, exist_ok=True)
    with (
        temporary_registry(CACHE / "registry") as registry,
        module.captured(name) as source,
        temporary_broker(CACHE / "kafka/lib") as broker,
    ):
        url = registry.url.replace("ccompat/v7", "registry/v2")
        connectors = {
            form: {**COMMON, **{key: value.replace("{registry}", url) for key, value in properties.items()}}
            for form, properties in source.connectors.items()
            if not forms or form in forms
        }
        with temporary_connect(CACHE / source.jars / "lib", broker.bootstrap_servers, connectors) as connect:
            try:
                _await(broker, [f"{form}.{source.schema}.{source.snapshot}" for form in connectors])
                source.change()
                _await(broker, [f"{form}.{source.schema}.{LAST}" for form in connectors])
            except TimeoutError:
                raise SystemExit(connect.errors()) from None
        messages = list(_messages(broker))
        for form in connectors:
            own = [message for message in messages if form in message["topic"].split(".")]
            lines = [*_registered(own, url, ID_BYTES.get(form, 4)), *_lines(own)]
            (folder / f"{name}.{form}.jsonl").write_text("".join(lines))
    (folder / f"{name}.published.json").write_text(json.dumps(source.published, indent=1, ensure_ascii=False) + "\n")


def _await(broker: Broker, topics: Sequence[str]) -> None:
    """Waits until each of the topics has a message."""
    consumer = _consumer(broker)
    deadline = time.monotonic() + WAIT_S_MAX
    missing = set(topics)
    while missing:
        if time.monotonic() > deadline:
            raise TimeoutError
        existing_topics = consumer.list_topics(timeout=30).topics
        for topic in missing & set(existing_topics):
            if consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]:
                missing.discard(topic)
        time.sleep(0.5)
    consumer.close()


def _messages(broker: Broker) -> Iterator[dict[str, Any]]:
    """Yields all messages, topic by topic."""
    consumer = _consumer(broker)
    for topic in sorted(consumer.list_topics(timeout=30).topics):
        if topic.startswith(("__consumer", "__transaction_state")):
            continue
        end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
        consumer.assign([TopicPartition(topic, 0, 0)])
        for _ in range(end):
            message = consumer.poll(30)
            assert message is not None, topic
            assert message.error() is None, message.error()
            yield {
                "topic": topic,
                "key": message.key(),
                "value": message.value(),
                "headers": message.headers() or [],
                "timestamp": message.timestamp()[1],
            }
    consumer.close()


def _registered(messages: Sequence[Mapping[str, Any]], url: str, id_bytes: int) -> Iterator[str]:
    """Yields a line for each registered schema to which one of the Avro messages refers."""
    numbers = {number for message in messages for number in _schema_ids(message, id_bytes)}
    for number in sorted(numbers):
        with urllib.request.urlopen(f"{url}/ids/globalIds/{number}", timeout=30) as answer:
            schema = json.load(answer)
        yield json.dumps({"id": number, "avro": schema}, ensure_ascii=False) + "\n"


def _schema_ids(message: Mapping[str, Any], id_bytes: int) -> Iterator[int]:
    """Yields the ids of the schemas to which an Avro message refers. If `id_bytes` is 0, the ids are in headers."""
    if not id_bytes:
        yield from (
            int.from_bytes(of) for name, of in message["headers"] if name.startswith("apicurio.") and len(of) == 8
        )
        return
    for content in (message["key"] or b"", message["value"] or b""):
        if content[:1] == b"\0":
            yield int.from_bytes(content[1 : 1 + id_bytes])


def _consumer(broker: Broker) -> Consumer:
    return Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "capture", "auto.offset.reset": "earliest"}
    )


def _lines(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    schemas: dict[str, int] = {}

    def parts(content: bytes | None) -> tuple[list[str], Any]:
        """Returns the lines to store for new schemas, and the content in the form in which it is stored.

        There is such a line only if the content has a schema that no earlier content had. The stored form is null, a
        text, base64, or two values: the number of the schema, and the payload.
        """
        if content is None:
            return [], None
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            return [], {"base64": b64encode(content).decode()}
        if not text.startswith(BEFORE):
            return [], text
        _, end = json.JSONDecoder().raw_decode(text, len(BEFORE))
        schema = text[len(BEFORE) : end]
        assert text[end:].startswith(BETWEEN)
        new = [] if schema in schemas else [json.dumps({"schema": schema}, ensure_ascii=False) + "\n"]
        number = schemas.setdefault(schema, len(schemas))
        return new, [number, text[end + len(BETWEEN) : -1]]

    for message in messages:
        line: dict[str, Any] = {"topic": message["topic"], "timestamp": message["timestamp"]}
        for member in ("key", "value"):
            new, line[member] = parts(message[member])
            yield from new
        headers = []
        for header, content in message["headers"]:
            if header.startswith(CONTEXT):
                continue
            new, shortened = parts(content)
            yield from new
            headers.append([header, shortened])
        yield json.dumps({**line, "headers": headers}, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
