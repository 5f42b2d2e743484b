"""Defines the interface of derivations: what PostgreSQL derives from the rows of a view."""

from collections.abc import Iterator
from typing import Protocol

from psycopg import sql

from changelog.spark_jobs.maintaining.postgres_tables import ViewIndex
from changelog.spark_jobs.maintaining.target import StateBatch


class Derivation(Protocol):
    """Tables or columns that depend on the rows of a view alone. They change in the transaction that applies a batch.

    A derivation does not know why a row changes. Once before a batch changes rows and once after, it notes what depends
    on the rows that may change. Then it changes only that. So a batch that is applied again changes nothing.
    """

    def indexes(self) -> Iterator[ViewIndex]:
        """Yields the indexes that a new view needs."""

    def before(self, batch: StateBatch) -> Iterator[sql.Composed]:
        """Yields statements that run before the rows change. The batch's states are staged by then."""

    def after(self) -> Iterator[sql.Composed]:
        """Yields statements that run after the rows have changed."""
