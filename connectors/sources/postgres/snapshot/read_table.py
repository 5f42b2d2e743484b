"""Describes how a table is read, and encodes the rows of a chunk from the output of COPY."""

from dataclasses import dataclass

from changelog.connectors.capture.rows.json_columns import CompiledBinding
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables.chunk_rows import ChunkRows
from changelog.connectors.sources.postgres.snapshot.copyout import parse_copy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable:
    """How to read an entity's table. This is valid as long as the table keeps its `signature`, the hash of its columns
    and their types.

    `columns` are the published columns, in the order of the binding `bound`. `where` is the entity's row filter.
    `casts` is the result of `key_casts` for the columns of the `key`. `only` says that tables that inherit from this
    one are not read with it.
    """

    signature: str
    bound: CompiledBinding
    columns: tuple[str, ...]
    where: str | None
    key: tuple[str, ...] = ()
    casts: tuple[str, ...] | None = None
    only: bool = True


def encode_copied(origin: Origin, bound: CompiledBinding, data: bytearray, *, read_at: int) -> ChunkRows:
    """Encodes the output of COPY, modifying `data` in place.

    Raises ChangelogError (MALFORMED) if the output does not have the expected columns.
    """
    columns = parse_copy(data, bound.binding.width)
    return ChunkRows.encode(origin, bound, data, columns, read_at=read_at)
