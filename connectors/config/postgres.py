"""Defines the section `[source]` with kind = "postgres"."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from changelog.connectors.config.fields import Section, SlotName, Text

USUAL_DSN = re.compile(r"postgres(ql)?://(\w+(:\w*)?@)?[\w.-]+(:\d+)?(/\w*)?", re.ASCII)
"""Matches the usual connection strings, all of which are valid. They are not parsed, because importing the parser takes
50 ms."""


def _dsn(text: str) -> str:
    if USUAL_DSN.fullmatch(text):
        return text
    import psycopg  # noqa: PLC0415
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        conninfo_to_dict(text)
    except psycopg.ProgrammingError:  # the error's message quotes the text, which may hold a password
        raise ValueError('should be a connection string, as in "postgresql://USER@HOST:5432/DATABASE"') from None
    return text


class PostgresConfig(Section):
    """`[source]`: how to connect to the database, the names of the slot and the publication there, and limits."""

    home: ClassVar[str] = "public"
    """The schema of the tables that are named without a schema."""

    kind: Literal["postgres"]
    dsn: Annotated[Text, AfterValidator(_dsn)] = Field(repr=False)
    slot: SlotName | None = None
    publication: SlotName | None = None
    failover: bool = False
    snapshot_workers: int = Field(default=2, ge=1, le=32)
    snapshot_pages: int = Field(default=256, ge=1, le=1 << 16)
    query_timeout_seconds: float = Field(default=30, gt=0, le=3600)
    read_timeout_seconds: float = Field(default=300, gt=0, le=86_400)
