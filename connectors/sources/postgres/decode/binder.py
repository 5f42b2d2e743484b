"""Binds a relation of the log (a table, as the stream describes it) to the entity that its rows belong to.

The binding says which columns are published and how, and which columns make up the key and the partition.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from changelog.connectors.capture.rows.binding import Binding, Field
from changelog.connectors.capture.rows.codec import Codec, Shape
from changelog.connectors.sources.postgres.decode.messages import Relation
from changelog.connectors.sources.postgres.values.text_to_json import codec_for
from changelog.connectors.sources.postgres.values.types import PgType
from changelog.envelope import mask
from changelog.envelope.entity import Entity
from changelog.schemas.types import Primitive


@dataclass(frozen=True, slots=True, kw_only=True)
class Binder:
    """Binds relations to entities.

    `resolve` returns the type for an OID; `hmac_key` is the secret of the `sha256` masks.
    """

    resolve: Callable[[int], PgType]
    hmac_key: bytes

    def bind(self, entity: Entity, relation: Relation, *, crossing: bool, leaves: Collection[Relation] = ()) -> Binding:
        """Returns the binding of `relation` to `entity`.

        `leaves` are the partitions of the relation that the stream has described so far. `crossing` says that rows can
        move between partitions, because the table is partitioned.
        """
        names = [column.name for column in relation.columns]
        published = [
            self._field(entity, relation, index) for index, name in enumerate(names) if _is_published(entity, name)
        ]
        identity = frozenset(index for index, column in enumerate(relation.columns) if column.key)
        full = relation.replica_identity == "f"
        lost = _lost(entity, relation)
        key, partition = (
            () if lost is not None else self._unmasked_fields(entity, relation, columns)
            for columns in (entity.key, entity.partition_by)
        )
        return Binding(
            entity=entity,
            table=_text(relation),
            relid=relation.relid,
            width=len(names),
            fields=tuple(published),
            key=key,
            partition=partition,
            identity=identity,
            full=full,
            lost=lost,
            unlogged=_unlogged((*key, *partition), _identities(names, [relation, *leaves])),
            whole_rows="ALTER TABLE … REPLICA IDENTITY FULL",
            crossing=crossing,
            leaves=_identities(names, leaves),
            mask=mask.mask_id(entity.masks, self.hmac_key),
        )

    def _unmasked_fields(self, entity: Entity, relation: Relation, columns: Collection[str]) -> tuple[Field, ...]:
        indexes = {column.name: index for index, column in enumerate(relation.columns)}
        return tuple(self._field(entity, relation, indexes[name], masked=False) for name in columns)

    def _field(self, entity: Entity, relation: Relation, index: int, *, masked: bool = True) -> Field:
        column = relation.columns[index]
        type_ = self.resolve(column.type_oid)
        codec = codec_for(type_, column.typmod)
        kind = entity.masks.get(column.name) if masked else None
        json = codec.column_type is Primitive.JSON
        if kind is not None:
            plain, hmac_key = codec.to_json, self.hmac_key
            codec = Codec(
                shape=Shape.OTHER,
                to_json=lambda text: mask.apply(kind, plain(text), hmac_key),
                column_type=Primitive.STRING if kind == "sha256" else codec.column_type,
            )
        return Field(
            index=index,
            name=column.name,
            label=msgspec.json.encode(column.name) + b":",
            codec=codec,
            json=json and kind is None,
        )


def _lost(entity: Entity, relation: Relation) -> str | None:
    """Returns why a message for the relation's rows cannot have its key or partition; None if it can."""
    names = {column.name for column in relation.columns}
    for role, needed in (("key", entity.key), ("partition_by", entity.partition_by)):
        for name in needed:
            if name not in names:
                return f"entity {entity.name}: {role} column {name} is no longer in {_text(relation)}"
    return None


def _identities(names: Sequence[str], leaves: Collection[Relation]) -> frozenset[frozenset[int]]:
    """Returns, for each table or partition in `leaves`, the columns of an old row that the log contains.

    A column is given as its position in `names`. Tables and partitions whose old rows are logged completely are left
    out, and so are columns that are not in `names`.
    """
    indexes = {name: index for index, name in enumerate(names)}
    return frozenset(
        frozenset(indexes[column.name] for column in leaf.columns if column.key and column.name in indexes)
        for leaf in leaves
        if leaf.replica_identity != "f"
    )


def _unlogged(fields: Sequence[Field], identities: Collection[frozenset[int]]) -> tuple[str, ...]:
    """Returns the names of the `fields` (key and partition columns) that at least one of `identities` lacks."""
    return tuple(
        dict.fromkeys(field.name for field in fields if any(field.index not in identity for identity in identities))
    )


def _is_published(entity: Entity, column: str) -> bool:
    is_selected = entity.columns is None or column in entity.columns
    return is_selected and column not in entity.exclude_columns and entity.masks.get(column) != "drop"


def _text(relation: Relation) -> str:
    return f"{relation.namespace}.{relation.name}"
