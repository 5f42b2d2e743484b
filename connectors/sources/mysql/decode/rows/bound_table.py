"""Defines how the values of an entity's table are printed and published, as long as its columns stay the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from changelog.connectors.capture.rows.json_columns import CompiledBinding
from changelog.connectors.capture.rows.row_change import UNCHANGED
from changelog.connectors.sources.mysql.decode.rows.binder import needed
from changelog.connectors.sources.mysql.decode.rows.row_images import Image
from changelog.connectors.sources.mysql.decode.rows.row_layout import RowLayout
from changelog.connectors.sources.mysql.values.batches.batch_printed import column_printer
from changelog.connectors.sources.mysql.values.batches.raw_columns import PrintColumn
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.printed import printer_for
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.envelope.entity import Entity

_BLOBS = frozenset({TypeCode.TINY_BLOB, TypeCode.BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB})
_EMPTY = memoryview(b"")

Print = Callable[[bytes | memoryview], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTable:
    """The table of an entity, as long as it has these columns.

    The place of a column is its index in `columns`. `printers` has the place of each column whose values are needed,
    and the function that prints one value. `column_printers` maps the same places to the functions that print many
    values of a column at once; None where there is no such function. `layout` is None if a column has a type whose
    values are never in rows, such as an array. `may_lack` has the places of the columns that rows may lack.
    """

    entity: Entity
    columns: tuple[LogColumn, ...]
    bound: CompiledBinding
    layout: RowLayout | None
    printers: tuple[tuple[int, Print], ...]
    column_printers: Mapping[int, PrintColumn | None]
    may_lack: frozenset[int]

    @classmethod
    def of(
        cls,
        entity: Entity,
        columns: tuple[LogColumn, ...],
        bound: CompiledBinding,
        charsets: Mapping[int, str],
        *,
        noblob: bool = False,
    ) -> "BoundTable":
        """Returns the table with these columns. `charsets` maps ids of collations to the names of their character sets.

        With `noblob`, rows may lack TEXT and BLOB columns, except for the entity's key and partition columns. MySQL
        leaves out such columns if its `binlog_row_image` is NOBLOB.
        """
        layout = RowLayout.of(columns)
        printers = tuple((place, printer_for(columns[place], charsets)) for place in needed(bound.binding))
        column_printers = {
            place: column_printer(columns[place], charsets, layout.frames[place].size, printer)
            for place, printer in printers
            if layout is not None
        }
        keys = {field.index for field in (*bound.binding.key, *bound.binding.partition)}
        blobs = (place for place, column in enumerate(columns) if column.type in _BLOBS) if noblob else ()
        return cls(
            entity=entity,
            columns=columns,
            bound=bound,
            layout=layout,
            printers=printers,
            column_printers=column_printers,
            may_lack=frozenset(blobs) - keys,
        )

    def absent(self, before: Image | None, after: Image | None) -> list[str]:
        """Returns the names of the needed columns whose values the log should have for a row, but lacks.

        A new row may lack a column that the old row has: then the value did not change.
        """
        old = before if before is not None else after
        assert old is not None
        lacking = [place for place, _ in self.printers if old[place] is UNCHANGED]
        return [self.columns[place].name for place in lacking if place not in self.may_lack]

    def with_defaults(self, inserted: Image) -> Image:
        """Fills in the values that an inserted row lacks, and returns the row.

        MySQL leaves out a TEXT or BLOB column only if the statement does not name the column and the column has no
        default. Then the value is null, or empty if the column is NOT NULL.
        """
        if UNCHANGED not in inserted:
            return inserted
        return tuple(
            (None if self.columns[place].nullable else _EMPTY)
            if value is UNCHANGED and place in self.may_lack
            else value
            for place, value in enumerate(inserted)
        )
