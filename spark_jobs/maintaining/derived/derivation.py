"""The interface of what PostgreSQL derives from the rows of a view."""

from collections.abc import Iterator
from typing import Protocol

from psycopg import sql

from changelog.spark_jobs.maintaining.postgres_tables import ViewIndex
from changelog.spark_jobs.maintaining.target import StateBatch


class Derivation(Protocol):
    """Tables or columns that depend on the rows of a view alone. They change in the transaction that applies a batch.

    A derivation does not know why a row changes. It notes what depends on the rows that a batch may change, once before
    these rows change and once after, and changes only that. So a batch that is applied again changes nothing.
    """

    def indexes(self) -> Iterator[ViewIndex]:
        """Yields the indexes that a new view needs."""

    def before(self, batch: StateBatch) -> Iterator[sql.Composed]:
        """Yields the statements that precede those which change the rows. The batch's states are staged by then."""

    def after(self) -> Iterator[sql.Composed]:
        """Yields the statements that follow them."""
