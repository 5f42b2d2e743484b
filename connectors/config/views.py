"""`[views.X]`: the documents that `spark_jobs/rebuild_view.py` makes."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from changelog.connectors.config.fields import Columns, EntityName, Section, Text


class NestedConfig(Section):
    """`[views.X.nested.MEMBER]`: the rows of `entity` that belong to a row around them.

    `on` says which: for each of their columns, the column of that row which it equals.
    """

    entity: EntityName
    on: Annotated[dict[Text, Text], Field(min_length=1)]
    columns: Columns = ("*",)
    where: Text | None = None
    nested: dict[Text, "NestedConfig"] = Field(default={})


class ViewConfig(Section):
    """`[views.X]`: documents for `spark_jobs/rebuild_view.py`, one a row of `entity`."""

    entity: EntityName
    columns: Columns = ("*",)
    where: Text | None = None
    nested: dict[Text, NestedConfig] = Field(default={})

    def entities(self) -> Iterator[str]:
        """All that its documents are made of, the outermost first."""
        parts: list[ViewConfig | NestedConfig] = [self]
        for part in parts:
            yield part.entity
            parts += part.nested.values()
