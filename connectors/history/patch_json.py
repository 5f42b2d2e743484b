"""Renders changes as JSON Patches, for programs that read the output of commands."""

from changelog.connectors.history.as_json import addressed
from changelog.envelope.delta import delta_codec, delta_of
from changelog.envelope.model import Record


def patch_message(record: Record) -> bytes:
    """Returns a change as a JSON object with the same members as that of
    `changelog.connectors.history.as_json.message`, but its `value` is the delta of the change.

    `changelog.envelope.delta` defines deltas: `{"provenance": …, "patch": […]}`. Raises ChangelogError (MALFORMED)
    if a state is not JSON.
    """
    return addressed(record, delta_codec.encode(delta_of(record.envelope)))
