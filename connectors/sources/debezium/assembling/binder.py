"""Binds a table, as the schema of an event describes it, to the entity that its rows belong to."""

from dataclasses import dataclass, field

from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.published_fields import published_fields
from changelog.connectors.sources.debezium.decode.events import EventTable
from changelog.envelope import mask
from changelog.envelope.entity import Entity

RELATION = 1
"""Every table has this `relid` (a table's id), because events do not show when a new table takes an old table's name.
"""

_WHOLE_ROWS = "let the database log whole rows, so that events have `before`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binder:
    """Binds tables to entities. `hmac_key` is the secret of the `sha256` masks."""

    hmac_key: bytes
    _bindings: dict[tuple[str, int], Binding] = field(default_factory=dict)

    def bind(self, entity: Entity, table: EventTable) -> Binding:
        """Returns the binding of a table to an entity.

        The old row of an event may have only the columns of the message's key, and an update may have no old row at
        all. In both cases, the row's earlier key and partition are known only if the message's key has all columns of
        the entity key and of the partition key.
        """
        binding = self._bindings.get((entity.name, table.number))
        if binding is not None:
            return binding
        names = [column.name for column in table.columns]
        text = ".".join(entity.table)
        published = published_fields(entity, text, names, lambda index: table.columns[index].codec, self.hmac_key)
        places = (*entity.key, *entity.partition_by)
        binding = self._bindings[entity.name, table.number] = Binding(
            entity=entity,
            table=text,
            relid=RELATION,
            width=len(names),
            fields=published.fields,
            key=published.key,
            partition=published.partition,
            identity=frozenset(place for place, name in enumerate(names) if name in table.key),
            full=False,
            lost=published.lost,
            unlogged=tuple(dict.fromkeys(name for name in places if name not in table.key)),
            whole_rows=_WHOLE_ROWS,
            crossing=False,
            leaves=frozenset(),
            mask=mask.mask_id(entity.masks, self.hmac_key),
        )
        return binding
