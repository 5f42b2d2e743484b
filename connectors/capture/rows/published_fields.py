"""Chooses the columns of a table that an entity publishes, and masks them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from changelog.connectors.capture.rows.binding import Field
from changelog.connectors.capture.rows.codec import Codec, Shape
from changelog.envelope import mask
from changelog.envelope.entity import Entity
from changelog.schemas.types import Primitive


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFields:
    """The members of a `Binding` that follow from an entity and the columns of its table."""

    fields: tuple[Field, ...]
    key: tuple[Field, ...]
    partition: tuple[Field, ...]
    lost: str | None


def published_fields(
    entity: Entity, table: str, names: Sequence[str], codec_of: Callable[[int], Codec], hmac_key: bytes
) -> PublishedFields:
    """Returns the published columns of the table `table`, in the order of `names`.

    `names` has the names of all columns of the table. A tuple of the log has the values of one row, in the same order.
    `codec_of` takes the index of a column in `names`, and returns the column's codec. `hmac_key` is the secret of the
    `sha256` masks.
    """

    def field(index: int, *, masked: bool) -> Field:
        codec = codec_of(index)
        kind = entity.masks.get(names[index]) if masked else None
        json = codec.column_type is Primitive.JSON
        if kind is not None:
            plain = codec.to_json
            codec = Codec(
                shape=Shape.OTHER,
                to_json=lambda text: mask.apply(kind, plain(text), hmac_key),
                column_type=Primitive.STRING if kind == "sha256" else codec.column_type,
            )
        return Field(
            index=index,
            name=names[index],
            label=msgspec.json.encode(names[index]) + b":",
            codec=codec,
            json=json and kind is None,
        )

    indexes = {name: index for index, name in enumerate(names)}
    lost = _lost(entity, table, names)
    key, partition = (
        () if lost is not None else tuple(field(indexes[name], masked=False) for name in columns)
        for columns in (entity.key, entity.partition_by)
    )
    return PublishedFields(
        fields=tuple(field(index, masked=True) for index, name in enumerate(names) if _is_published(entity, name)),
        key=key,
        partition=partition,
        lost=lost,
    )


def _lost(entity: Entity, table: str, names: Collection[str]) -> str | None:
    """Returns why the key or the partition of the table's rows cannot be computed; None if both can."""
    for role, column_names in (("key", entity.key), ("partition_by", entity.partition_by)):
        for name in column_names:
            if name not in names:
                return f"entity {entity.name}: {role} column {name} is no longer in the table {table}"
    return None


def _is_published(entity: Entity, column: str) -> bool:
    is_selected = entity.columns is None or column in entity.columns
    return is_selected and column not in entity.exclude_columns and entity.masks.get(column) != "drop"
