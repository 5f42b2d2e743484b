"""Removes a changelog's topics and its checkpoint from a broker."""

import time
from collections.abc import Sequence

from changelog.connectors.kafka.client import TIMEOUT_S, Client, translated
from changelog.connectors.sinks.kafka.admin.names import positions_topic
from changelog.connectors.sinks.kafka.admin.send_messages import send_messages

_POLL_S = 0.05


def delete_topics(client: Client, names: Sequence[str]) -> None:
    """Deletes these topics and their messages, and waits, at most `TIMEOUT_S`, until the broker lists none of them.

    The broker still lists a deleted topic for a moment. A service that starts in that moment would use the deleted
    topic. If a topic is still listed after `TIMEOUT_S`, no error is raised: most likely, somebody else has created it
    again. Raises ChangelogError if a topic cannot be deleted.
    """
    admin = client.admin()
    with translated("deleting topics"):
        for future in admin.delete_topics(list(names), request_timeout=TIMEOUT_S).values():
            future.result()
    deadline = time.monotonic() + TIMEOUT_S
    while not admin.topics().keys().isdisjoint(names) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def forget_checkpoint(client: Client, prefix: str, name: str) -> None:
    """Replaces the checkpoint of the source `name` by a tombstone, so that the source starts from the beginning.

    Raises ChangelogError.
    """
    topic = positions_topic(prefix)
    send_messages(client, [(topic, None, name.encode(), 0)], f"writing to {topic}")
