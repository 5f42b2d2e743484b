"""Makes deletes for ghosts: keys that are in the changelog, but that `key_lookup` did not find in the table."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
from msgspec import Raw

from changelog.connectors.capture.rows import row_records
from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.row_records import Change, Origin
from changelog.connectors.capture.tables.key_lookup import Ghost
from changelog.envelope.codec.avro_values import encoder
from changelog.envelope.codec.json_codec import members
from changelog.envelope.model import MISSING, Envelope, Missing, Op, Place, Record


def deleted(origin: Origin, binding: Binding, ghost: Ghost, change: Change) -> Record:
    """Returns a delete of the ghost. Its `original` is the ghost's last state, without the values that do not fit the
    present columns of the table.
    """
    provenance = row_records.provenance(origin, binding, Op.DELETE, change, change.position())
    original, left_out = _fitting(binding, ghost)
    source = replace(
        provenance.source,
        mask=ghost.mask,
        unavailable_original=tuple(dict.fromkeys([*ghost.unavailable, *left_out])),
        json_null_original=tuple(name for name in ghost.json_null if name not in left_out),
    )
    return Record(
        entity=binding.entity.name,
        place=Place(key=ghost.key, partition=ghost.partition),
        envelope=Envelope(provenance=replace(provenance, source=source), current=None, original=original),
    )


def _fitting(binding: Binding, ghost: Ghost) -> tuple[Raw | Missing, tuple[str, ...]]:
    """Returns the members of the ghost's state that fit the entity's present columns, as a JSON object.

    The second result has the names of the present columns that the object lacks, except those that were already
    unavailable in the ghost's state.
    """
    shape = dict(binding.shape.fields)
    try:
        tokens = members(bytes(ghost.current))
    except (ValueError, msgspec.MsgspecError):  # not a JSON object, so another program must have written the row
        return MISSING, tuple(shape)
    fits = {name: _fits(token, name, shape) for name, token in tokens.items()}
    left_out = tuple(name for name in shape if not fits.get(name, False) and name not in ghost.unavailable)
    if all(fits.values()):
        return ghost.current, left_out
    fitting = [msgspec.json.encode(name) + b":" + token for name, token in tokens.items() if fits[name]]
    return Raw(b"{" + b",".join(fitting) + b"}") if fitting else MISSING, left_out


def _fits(token: bytes, name: str, shape: Mapping[str, object]) -> bool:
    if name not in shape:
        return False
    try:
        encoder(shape[name], nullable=True)(token)  # type: ignore[arg-type]
    except ValueError:
        return False
    return True
