"""Defines the sections `[views.X]`: views of several entities, which the job `spark_jobs/rebuild_view.py` builds.

Such a view has a document for each row of one entity. Arrays in the document can have rows of other entities.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from changelog.connectors.config.fields import Columns, EntityName, Section, Text


class NestedConfig(Section):
    """`[views.X.nested.MEMBER]`: the array MEMBER of a document, with the rows of `entity` that belong to the document.

    `on` says which rows belong to it: `{"guest_id": "id"}` selects the rows whose column `guest_id` equals the column
    `id` of the enclosing row. For an array of the document, the enclosing row is the document's row. For an array
    inside another array, it is the row of the outer array's element.
    """

    entity: EntityName
    on: Annotated[dict[Text, Text], Field(min_length=1)]
    columns: Columns = ("*",)
    where: Text | None = None
    nested: dict[Text, "NestedConfig"] = Field(default={})


class ViewConfig(Section):
    """`[views.X]`: a view with one document for each row of `entity`."""

    entity: EntityName
    columns: Columns = ("*",)
    where: Text | None = None
    nested: dict[Text, NestedConfig] = Field(default={})

    def entities(self) -> Iterator[str]:
        """Yields the entity of the documents, and then the entities of all arrays in them, outer arrays before inner
        ones.
        """
        parts: list[ViewConfig | NestedConfig] = [self]
        for part in parts:
            yield part.entity
            parts += part.nested.values()
