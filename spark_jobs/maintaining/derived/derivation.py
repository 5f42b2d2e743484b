"""Defines the interface of derivations. A derivation is what PostgreSQL derives from the rows of a view."""

from collections.abc import Iterator
from typing import Protocol

from psycopg import sql

from changelog.spark_jobs.maintaining.postgres_tables import ViewIndex
from changelog.spark_jobs.maintaining.target import StateBatch


class Derivation(Protocol):
    """Keeps tables or columns that depend only on the rows of a view. They change in the transaction that applies a
    batch.

    A derivation does not know why a row changes. It looks at the rows that a batch may change, once before and once
    after the batch changes them. Both times, it notes which of its values depend on these rows. Then it computes only
    these values again. The result depends only on the rows, so a batch that is applied again, and leaves the rows as
    they are, changes nothing.
    """

    def indexes(self) -> Iterator[ViewIndex]:
        """Yields the indexes that a new view needs for this derivation."""

    def before(self, batch: StateBatch) -> Iterator[sql.Composed]:
        """Yields statements that run before the rows change. By then, the table `batch` has the batch's states."""

    def after(self) -> Iterator[sql.Composed]:
        """Yields statements that run after the rows have changed."""
