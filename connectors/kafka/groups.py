"""Asks Kafka for the members of consumer groups."""

from collections.abc import Mapping

from changelog.connectors.kafka.client import TIMEOUT_S, Admin, translated


def static_members(admin: Admin, group: str) -> Mapping[str, str]:
    """Returns the client ids of the static members of a group (those with an instance id), by instance id.

    A client id names the process, if the process chose it so. Raises ChangelogError.
    """
    with translated("asking Kafka for the members of a group"):
        [answer] = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S).values()
        members = answer.result().members
    return {member.group_instance_id: member.client_id for member in members if member.group_instance_id is not None}
