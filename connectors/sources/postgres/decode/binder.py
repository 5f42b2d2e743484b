"""Binds a relation (a table, as the replication stream describes it) to the entity that its rows belong to.

The binding says which columns are published and how, and which columns make up the entity key and the partition key.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from changelog.connectors.capture.rows.binding import Binding, Field
from changelog.connectors.capture.rows.codec import Codec
from changelog.connectors.capture.rows.published_fields import published_fields
from changelog.connectors.sources.postgres.decode.messages import Relation
from changelog.connectors.sources.postgres.values.text_to_json import codec_for
from changelog.connectors.sources.postgres.values.types import PgType
from changelog.envelope import mask
from changelog.envelope.entity import Entity


@dataclass(frozen=True, slots=True, kw_only=True)
class Binder:
    """Binds relations to entities.

    `resolve` returns the type for an OID; `hmac_key` is the secret of the `sha256` masks.
    """

    resolve: Callable[[int], PgType]
    hmac_key: bytes

    def bind(self, entity: Entity, relation: Relation, *, crossing: bool, leaves: Collection[Relation] = ()) -> Binding:
        """Returns the binding of `relation` to `entity`.

        `leaves` are those partitions of `relation` that the stream has described so far. `crossing` says that the table
        is partitioned, so that rows can move between partitions.
        """
        names = [column.name for column in relation.columns]
        table = f"{relation.namespace}.{relation.name}"
        published = published_fields(entity, table, names, partial(self._codec, relation), self.hmac_key)
        return Binding(
            entity=entity,
            table=table,
            relid=relation.relid,
            width=len(names),
            fields=published.fields,
            key=published.key,
            partition=published.partition,
            identity=frozenset(index for index, column in enumerate(relation.columns) if column.key),
            full=relation.replica_identity == "f",
            lost=published.lost,
            unlogged=_unlogged((*published.key, *published.partition), _identities(names, [relation, *leaves])),
            whole_rows="ALTER TABLE … REPLICA IDENTITY FULL",
            crossing=crossing,
            leaves=_identities(names, leaves),
            mask=mask.mask_id(entity.masks, self.hmac_key),
        )

    def _codec(self, relation: Relation, index: int) -> Codec:
        column = relation.columns[index]
        return codec_for(self.resolve(column.type_oid), column.typmod)


def _identities(names: Sequence[str], leaves: Collection[Relation]) -> frozenset[frozenset[int]]:
    """Returns, for each table or partition in `leaves`, which columns of an old row the log contains.

    A column is given as its position in `names`; columns that are not in `names` are left out. Tables and partitions
    whose old rows the log contains completely are left out, too.
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
