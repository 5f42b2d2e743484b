"""Binds a table to the entity that its rows belong to. The table's columns come from a table map or the catalogue."""

from collections.abc import Sequence
from dataclasses import dataclass

from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.json_columns import CompiledBinding
from changelog.connectors.capture.rows.published_fields import published_fields
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.types import codec_for
from changelog.envelope import mask
from changelog.envelope.entity import Entity

RELATION = 1
"""The `relid` of every table. A `relid` should identify a table, but the log has no lasting ids of tables. The source
finds out in another way if a new table takes the name of a published one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binder:
    """Binds tables to entities. `hmac_key` is the secret of the `sha256` masks."""

    hmac_key: bytes

    def bind(self, entity: Entity, columns: Sequence[LogColumn]) -> CompiledBinding:
        """Returns the compiled binding of a table with these columns."""
        names = [column.name for column in columns]
        table = ".".join(entity.table)
        published = published_fields(entity, table, names, lambda index: codec_for(columns[index]), self.hmac_key)
        binding = Binding(
            entity=entity,
            table=table,
            relid=RELATION,
            width=len(names),
            fields=published.fields,
            key=published.key,
            partition=published.partition,
            identity=frozenset(range(len(names))),
            full=True,
            lost=published.lost,
            unlogged=(),
            whole_rows="SET GLOBAL binlog_row_image = FULL",
            crossing=False,
            leaves=frozenset(),
            mask=mask.mask_id(entity.masks, self.hmac_key),
        )
        return CompiledBinding.of(binding)


def needed(binding: Binding) -> list[int]:
    """Returns the indexes of the columns that are published or belong to the key or the partition, in order."""
    return sorted({field.index for field in (*binding.fields, *binding.key, *binding.partition)})
