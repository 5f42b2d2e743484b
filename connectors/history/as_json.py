"""Turns changes, blame, and counts of a writer's changes into JSON, for programs that read the output of commands."""

from dataclasses import replace

import msgspec
from msgspec import Raw

from changelog.connectors.history.key_blame import KeyState
from changelog.connectors.history.writes import EntityWrites
from changelog.envelope.blame import Attribute, Blame, Writer
from changelog.envelope.codec import json_codec
from changelog.envelope.codec.json_codec import members, time_text
from changelog.envelope.model import Envelope, Missing, Place, Record


def message(record: Record) -> bytes:
    """Returns a change as an object: the members that `addressed` adds, and the change's message as `value`."""
    return addressed(record, json_codec.encode(_in_json(record.envelope)))


def addressed(record: Record, value: bytes) -> bytes:
    """Returns an object with the `entity`, `key` and `partition` of a record, and a `value`, which is JSON.

    The object also has `movedTo` or `movedFrom` if the row moved to or from another key or partition.
    """
    line: dict[str, object] = {"entity": record.entity, "key": record.place.key, "partition": record.place.partition}
    for name, place in (("movedTo", record.moved_to), ("movedFrom", record.moved_from)):
        if place is not None:
            line[name] = _place(place)
    line["value"] = Raw(value)
    return msgspec.json.encode(line)


def state(row: KeyState, change: bytes) -> bytes:
    """Returns a row's state as an object with three members.

    `current` is the state; null if there is no row. `unavailable` has the names of the columns whose values are not
    known. `change` is the change that made the state, as JSON.
    """
    answer = {
        "current": row.blame.current,
        "unavailable": row.blame.unavailable,
        "change": Raw(change),
    }
    return msgspec.json.encode(answer)


def blame_of(entity: str, key: str, blame: Blame) -> bytes:
    """Returns blame as an object: `entity`, `key`, `services`, `current`, `last`, and `attributes`, each with `path`,
    `value`, `before` and `writer`.

    An attribute whose value is unavailable has no `value`. `before` is the value before the writer's change. If the
    attribute did not exist then, `before` is left out; if its value is unknown, `"beforeUnknown": true` takes the place
    of `before`. An unknown writer has no `serviceName`, `apiVersion` and `identifier`.
    """
    answer = {
        "entity": entity,
        "key": key,
        "services": blame.services,
        "current": blame.current,
        "last": None if blame.last is None else _writer(blame.last),
        "attributes": [_attribute(attribute) for attribute in blame.attributes],
    }
    return msgspec.json.encode(answer)


def writes_to(entity: EntityWrites) -> bytes:
    """Returns what was written to an entity as an object with the members of `EntityWrites`, in camel case."""
    answer = {
        "entity": entity.entity,
        "services": entity.services,
        "creates": entity.creates,
        "updates": entity.updates,
        "moves": entity.moves,
        "deletes": entity.deletes,
        "truncates": entity.truncates,
        "firstPosition": str(entity.first_position),
        "lastPosition": str(entity.last_position),
        "firstTime": time_text(entity.first_time),
        "lastTime": time_text(entity.last_time),
        "keys": entity.keys,
    }
    return msgspec.json.encode(answer)


def _attribute(attribute: Attribute) -> dict[str, object]:
    answer: dict[str, object] = {"path": attribute.pointer}
    if attribute.value is not None:
        answer["value"] = attribute.value
    if attribute.before is None:
        answer["beforeUnknown"] = True
    elif not isinstance(attribute.before, Missing):
        answer["before"] = attribute.before
    return answer | {"writer": _writer(attribute.writer)}


def _writer(writer: Writer) -> dict[str, object]:
    answer: dict[str, object] = {}
    if writer.stamp is not None:
        answer |= {
            "serviceName": writer.stamp.service_name,
            "apiVersion": writer.stamp.api_version,
            "identifier": writer.stamp.identifier,
        }
        if writer.stamp.context is not None:
            answer["context"] = Raw(writer.stamp.context)
    return answer | {
        "op": writer.op,
        "position": str(writer.position),
        "transaction": writer.transaction,
        "committedAt": time_text(writer.committed_at),
    }


def _in_json(envelope: Envelope) -> Envelope:
    """Returns the envelope in a form that can be printed as JSON: `current` and `original` are objects or strings.

    An older version of the service may have stored a state that is not a JSON object. The text of such a state becomes
    a JSON string.
    """
    if isinstance(envelope.current, Raw) and not _is_object(envelope.current):
        envelope = replace(envelope, current=_string(envelope.current))
    if isinstance(envelope.original, Raw) and not _is_object(envelope.original):
        envelope = replace(envelope, original=_string(envelope.original))
    return envelope


def _is_object(state: Raw) -> bool:
    try:
        members(bytes(state))
    except ValueError:
        return False
    return True


def _string(state: Raw) -> Raw:
    return Raw(msgspec.json.encode(bytes(state).decode()))


def _place(place: Place) -> dict[str, object]:
    return {"key": place.key, "partition": place.partition}
