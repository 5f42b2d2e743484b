"""Keeps the stream's latest description of each relation (a table or partition), and its binding to an entity."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from changelog.connectors.capture.assembly.assembled import ColumnChanges
from changelog.connectors.capture.rows.json_columns import CompiledBinding
from changelog.connectors.sources.postgres.decode.binder import Binder
from changelog.connectors.sources.postgres.decode.frames import Frames
from changelog.connectors.sources.postgres.decode.messages import Relation
from changelog.connectors.sources.postgres.values.definitions import Definitions
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.envelope.versions import TableColumns
from changelog.schemas.types import Struct


class Flush(Protocol):
    """Encodes the pending rows with the previous description of their table."""

    def __call__(self, *, but_a_delete: bool = False) -> None:
        """Encodes the pending rows; with `but_a_delete`, a delete at the end of these rows stays pending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationDescription:
    """The columns of an entity's next rows, as the stream describes them.

    `retyped` names the columns that had another type in earlier rows. If `has_key` is false, the table no longer has
    the columns of the entity's key, and the stream stops at the next row.
    """

    entity: Entity
    table: TableColumns
    has_key: bool
    retyped: tuple[str, ...] = ()


class Relations:
    """Keeps the relations that the stream has described. `bound` holds the bindings to entities, by the relation's OID.

    `definitions` tracks the composite types of the columns; without it, composite types count as never altered.
    """

    def __init__(
        self,
        binder: Binder,
        entities: Mapping[tuple[str, str], Entity],
        partitioned: Collection[tuple[str, str]],
        definitions: Definitions | None = None,
    ) -> None:
        self.bound: dict[int, CompiledBinding] = {}
        self._binder, self._entities, self._partitioned = binder, entities, partitioned
        self._definitions = definitions
        self._relations: dict[int, Relation] = {}
        self._shapes: dict[str, bytes] = {}
        self._last: int | None = None
        self._leaves: dict[int, dict[int, Relation]] = {}

    def shapes(self, entities: Iterable[str]) -> bytes:
        """Returns the columns of these entities, encoded for a batch. Entities without a description are left out.

        The columns of an entity are encoded when the stream describes its table. If instead each description made us
        encode the columns of all entities, a stream that describes 1,000 tables would take a minute of CPU.
        """
        return batch.join_shapes(self._shapes[entity] for entity in sorted(entities) if entity in self._shapes)

    def describe(
        self, relation: Relation, flush: Flush, changed: Callable[[Relation], None]
    ) -> RelationDescription | None:
        """Makes `relation` the description of its table's next rows; returns None if no entity has this table.

        If the columns of an entity's table differ from the previous description, calls `changed` with the previous
        description, even if `relation` cannot be bound afterwards. Raises ChangelogError: ALTERED if the type of a key
        column is being altered, and any error that occurs when the catalogue is read.
        """
        last, self._last = self._last, relation.relid
        entity = self._entities.get((relation.namespace, relation.name))
        if entity is None and last is not None:
            self._leaf(last, relation, flush)
        previous = self._relations.get(relation.relid)
        if previous == relation:
            return None if entity is None else self._described(entity, relation)
        same_entity = [relid for relid, bound in self.bound.items() if bound.binding.entity is entity]
        if previous is not None or same_entity:
            flush()  # pending rows belong to the previous description, or to the table that had this name before
        for relid in same_entity:  # a table that is renamed back has to be bound again
            self._relations.pop(relid, None)
            self.bound.pop(relid, None)
        self._relations[relation.relid] = relation
        self.bound.pop(relation.relid, None)
        if entity is None:
            return None
        if previous is not None and previous.columns != relation.columns:
            changed(previous)
        self._put(relation.relid, self._bind(entity, relation))
        return self._described(entity, relation)

    def enter(self, xid: int, commit: int, frames: Frames, begin: int) -> None:
        """Opens a transaction at the frame `begin`; see `Definitions.enter`."""
        if self._definitions is not None:
            first = frames.first_lsn(begin) if self._definitions.tracking else 0
            self._definitions.enter(xid, first, commit)

    def tracked_in(self, frames: Frames) -> bool:
        """Returns whether the frames hold rows with composite types: the stream does not announce when such a type is
        altered.
        """
        if self._definitions is None or not self._definitions.tracking:
            return False
        return frames.hold([relid for relid in self.bound if self._tracks(self._relations[relid])])

    def settle(self, flush: Flush) -> Sequence[RelationDescription]:
        """Binds the relations again, with the composite types as the open transaction saw them.

        Returns the descriptions of the tables whose columns have other types than before.
        """
        if self._definitions is None or not self._definitions.tracking or not self._definitions.settle():
            return ()
        flush()
        descriptions = []
        for relid, before in list(self.bound.items()):
            relation, old = self._relations[relid], before.binding
            if self._tracks(relation):
                self._put(relid, self._bind(old.entity, relation))
                described = self._described(old.entity, relation)
                retyped = _differing(old.shape, described.table.columns)
                descriptions += [replace(described, retyped=retyped)] if retyped else []
        return descriptions

    def _tracks(self, relation: Relation) -> bool:
        assert self._definitions is not None
        return any(self._definitions.tracks(column.type_oid) for column in relation.columns)

    def _put(self, relid: int, bound: CompiledBinding) -> None:
        self.bound[relid] = bound
        name = bound.binding.entity.name
        self._shapes[name] = batch.encode_shape(name, bound.binding.shape)

    def _described(self, entity: Entity, relation: Relation) -> RelationDescription:
        binding = self.bound[relation.relid].binding
        table = TableColumns(columns=binding.shape, relation=relation.relid)
        return RelationDescription(entity=entity, table=table, has_key=binding.lost is None)

    def _leaf(self, root: int, leaf: Relation, flush: Flush) -> None:
        """Applies a partition's description, which says which columns of the partition's old rows the log contains.

        The server first describes the table under which the partition's rows are published, then the partition, and
        only then sends these rows (`maybe_send_schema` in the server's pgoutput.c).
        """
        bound = self.bound.get(root)
        if bound is None or not bound.binding.crossing:
            return
        self._leaves.setdefault(root, {})[leaf.relid] = leaf
        updated = self._bind(bound.binding.entity, self._relations[root])
        if updated.binding.leaves != bound.binding.leaves:
            flush(but_a_delete=True)
            self.bound[root] = updated

    def _bind(self, entity: Entity, relation: Relation) -> CompiledBinding:
        binding = self._binder.bind(
            entity,
            relation,
            crossing=(relation.namespace, relation.name) in self._partitioned,
            leaves=self._leaves.get(relation.relid, {}).values(),
        )
        if self._definitions is not None:
            for field in (*binding.key, *binding.partition):
                if self._definitions.pending(relation.columns[field.index].type_oid):
                    raise _being_altered(binding.table, field.name)
        return CompiledBinding.of(binding)


def _being_altered(table: str, column: str) -> ChangelogError:
    """Returns the error for a key column whose type is uncertain: a row published now could get the wrong key.

    The service opens the source again and again until the transaction that alters the type has ended.
    """
    message = f"an open transaction alters the type of key or partition column {column} of the table {table}"
    hint = "end that transaction: until then, nothing after this position is published"
    return ChangelogError(Kind.ALTERED, message, hint=hint)


def altered(before: Relation, after: Relation, position: Position) -> ColumnChanges:
    """Returns how the columns of two descriptions of a table differ; `position` is where `after` begins to apply."""
    old = {column.name: column.type_oid for column in before.columns}
    new = {column.name: column.type_oid for column in after.columns}
    return ColumnChanges(
        table=f"{after.namespace}.{after.name}",
        position=position,
        added=tuple(name for name in new if name not in old),
        dropped=tuple(name for name in old if name not in new),
        retyped=tuple(name for name in new if name in old and new[name] != old[name]),
    )


def retyped(described: RelationDescription, position: Position) -> ColumnChanges:
    """Returns the changes of columns whose composite types were altered while the table itself was not."""
    table = ".".join(described.entity.table)
    return ColumnChanges(table=table, position=position, added=(), dropped=(), retyped=described.retyped)


def _differing(before: Struct, after: Struct) -> tuple[str, ...]:
    """Returns the names of the columns whose types differ; both structs have the same columns."""
    return tuple(name for (name, new), (_, old) in zip(after.fields, before.fields, strict=True) if new != old)
