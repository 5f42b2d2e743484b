"""What this service's user may do on the broker, asked of the broker itself (KIP-430, KIP-98)."""

from collections.abc import Iterator, Sequence

from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AclOperation

from connectors.findings import Finding, fail, ok
from connectors.sinks.kafka.client import TIMEOUT_S, Client, translated
from envelope.errors import ChangelogError

NEEDED = (AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE)


def topic_rights(client: Client, names: Sequence[str]) -> Iterator[Finding]:
    """Whether each of these topics, which are there, may be read and written."""
    try:
        granted = _granted(client, names)
    except ChangelogError as error:
        yield fail("rights", error.message, error.hint or "see docs/reference/kafka.md for the rights that are needed")
        return
    lacking = {name: [each.name for each in NEEDED if each not in found] for name, found in granted.items()}
    for name, lacks in lacking.items():
        if lacks:
            hint = f"kafka-acls --add --topic {name} --allow-principal User:… " + " ".join(
                f"--operation {each.title()}" for each in lacks
            )
            yield fail("rights", f"topic {name}: this user lacks {', '.join(lacks)}", hint)
    if not any(lacking.values()):
        yield ok("rights", f"{len(lacking)} topics may be read and written")


def _granted(client: Client, names: Sequence[str]) -> dict[str, set[AclOperation]]:
    admin = client.admin()
    with translated("asking Kafka for our rights"):
        answers = admin.describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, request_timeout=TIMEOUT_S
        )
        return {name: set(future.result().authorized_operations or ()) for name, future in answers.items()}


def transaction_rights(client: Client, transactional_id: str) -> Finding:
    """Whether transactions may be begun under this id. It fences who uses the id: ask only while nobody does."""
    try:
        with translated(f"beginning transactions as {transactional_id}"):
            Producer(client.config(transactional_id=transactional_id)).init_transactions(TIMEOUT_S)
    except ChangelogError as error:
        acl = f"kafka-acls --add --transactional-id {transactional_id} --allow-principal User:… --operation Write"
        return fail("transactions", error.message, f"{acl} --operation Describe")
    return ok("transactions", f"may be begun as {transactional_id}")
