"""A table of an entity with the columns of one description: how its values are printed and published."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from changelog.connectors.capture.rows.json_columns import CompiledBinding
from changelog.connectors.capture.rows.row_change import UNCHANGED
from changelog.connectors.sources.mysql.decode.rows.binder import needed
from changelog.connectors.sources.mysql.decode.rows.row_images import Image
from changelog.connectors.sources.mysql.decode.rows.row_layout import RowLayout
from changelog.connectors.sources.mysql.values.batches.batch_printed import column_printer
from changelog.connectors.sources.mysql.values.batches.raw_columns import PrintColumn
from changelog.connectors.sources.mysql.values.columns import Column
from changelog.connectors.sources.mysql.values.printed import printer_for
from changelog.envelope.entity import Entity

Print = Callable[[bytes | memoryview], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTable:
    """A table of an entity, with these columns.

    `printers` has the place of each column whose value is needed, and the function that prints it. `column_printers`
    maps the same places to the functions that print many values of a column at once; None where there is no such
    function. `layout` is None if a column has a type whose values are never in rows.
    """

    entity: Entity
    columns: tuple[Column, ...]
    bound: CompiledBinding
    layout: RowLayout | None
    printers: tuple[tuple[int, Print], ...]
    column_printers: Mapping[int, PrintColumn | None]

    @classmethod
    def of(
        cls, entity: Entity, columns: tuple[Column, ...], bound: CompiledBinding, charsets: Mapping[int, str]
    ) -> "BoundTable":
        """Returns the table with these columns; `charsets` are those of `printer_for`."""
        layout = RowLayout.of(columns)
        printers = tuple((place, printer_for(columns[place], charsets)) for place in needed(bound.binding))
        column_printers = {
            place: column_printer(columns[place], charsets, layout.frames[place].size, printer)
            for place, printer in printers
            if layout is not None
        }
        return cls(
            entity=entity,
            columns=columns,
            bound=bound,
            layout=layout,
            printers=printers,
            column_printers=column_printers,
        )

    def absent(self, before: Image | None, after: Image | None) -> list[str]:
        """Returns the names of the needed columns whose values the log does not have for a row.

        A new row may lack a column that the old row has: then the value did not change.
        """
        old = before if before is not None else after
        assert old is not None
        return [self.columns[place].name for place, _ in self.printers if old[place] is UNCHANGED]
