"""Asks the broker which rights the user of this service has (KIP-430, KIP-98), for `changelog check`."""

from collections.abc import Iterator, Sequence

from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AclOperation

from changelog.connectors.findings import Finding, fail, ok
from changelog.connectors.kafka.client import TIMEOUT_S, Client, translated
from changelog.envelope.errors import ChangelogError

NEEDED = (AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE)


def topic_rights(client: Client, names: Sequence[str]) -> Iterator[Finding]:
    """Yields a finding for each topic for which the user lacks a right.

    If the user has all rights, yields one finding, which says so. The topics must exist.
    """
    try:
        granted_operations = _granted(client, names)
    except ChangelogError as error:
        yield fail("rights", error.message, error.hint or "see docs/reference/kafka.md for the rights that are needed")
        return
    missing = {
        name: [operation.name for operation in NEEDED if operation not in operations]
        for name, operations in granted_operations.items()
    }
    for name, operations in missing.items():
        if operations:
            hint = f"kafka-acls --add --topic {name} --allow-principal User:… " + " ".join(
                f"--operation {operation.title()}" for operation in operations
            )
            yield fail("rights", f"topic {name}: the service's user lacks {', '.join(operations)}", hint)
    if not any(missing.values()):
        yield ok("rights", f"the service's user may read and write all {len(missing)} topics")


def _granted(client: Client, names: Sequence[str]) -> dict[str, set[AclOperation]]:
    admin = client.admin()
    with translated("asking Kafka for our rights"):
        answers = admin.describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, request_timeout=TIMEOUT_S
        )
        return {name: set(future.result().authorized_operations or ()) for name, future in answers.items()}


def transaction_rights(client: Client, transactional_id: str) -> Finding:
    """Tries to begin transactions with this id, and returns whether the user may do so.

    The attempt fences (shuts out) a running producer with the same id. So call this only while no service runs.
    """
    try:
        with translated(f"beginning transactions as {transactional_id}"):
            Producer(client.config(transactional_id=transactional_id)).init_transactions(TIMEOUT_S)
    except ChangelogError as error:
        acl = f"kafka-acls --add --transactional-id {transactional_id} --allow-principal User:… --operation Write"
        return fail("transactions", error.message, f"{acl} --operation Describe")
    return ok("transactions", f"the service's user may begin transactions as {transactional_id}")
