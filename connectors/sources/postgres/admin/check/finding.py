"""What a check is asked, and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from connectors.findings import Finding
from envelope.entity import Entity


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What the service asks of the database; `through_lsn` is how far the changelog is, None before it is begun."""

    slot: str
    publication: str
    failover: bool
    entities: Sequence[Entity]
    through_lsn: int | None = None


def mend(name: str, message: str, statement: str) -> Finding:
    """A failure that one safe statement ends."""
    return Finding(name=name, status="fail", message=message, hint=statement, fix=(statement,))


def quote(*names: str) -> str:
    """A name as SQL has it, its parts joined by dots."""
    return sql.Identifier(*names).as_string()
