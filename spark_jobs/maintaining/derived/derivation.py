"""Defines the interface of derivations: what PostgreSQL derives from the rows of a view."""

from collections.abc import Iterator
from typing import Protocol

from psycopg import sql

from changelog.spark_jobs.maintaining.postgres_tables import ViewIndex
from changelog.spark_jobs.maintaining.target import StateBatch


class Derivation(Protocol):
    """Tables or columns that depend on the rows of a view alone. They change in the transaction that applies a batch.

    A derivation does not know why a row changes. It looks at the rows that may change, once before a batch changes them
    and once after. Each time, it notes what depends on them. Then it changes only what it noted. So a batch that is
    applied again changes nothing.
    """

    def indexes(self) -> Iterator[ViewIndex]:
        """Yields the indexes that a new view needs."""

    def before(self, batch: StateBatch) -> Iterator[sql.Composed]:
        """Yields statements that run before the rows change. The batch's states are staged by then."""

    def after(self) -> Iterator[sql.Composed]:
        """Yields statements that run after the rows have changed."""
