"""Defines what the demo needs of its database. `demo.postgres` and `demo.mysql` implement it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from changelog.envelope.model import Stamp

Parameters = Sequence[object] | Mapping[str, object]


class Session(Protocol):
    """A session with the database. Each statement is a transaction of its own, except in the body of `stamped`."""

    def execute(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Runs one statement and returns its rows. `%s` and `%(name)s` stand for parameters, and `%%` for one `%`."""

    def stamped(self, stamp: Stamp) -> AbstractContextManager[None]:
        """Runs the body in one transaction, and commits it. The stamp in it says who makes the changes."""


class DemoDatabase(Protocol):
    """A running server with the database of the demo, which is empty until `build` fills it."""

    @property
    def label(self) -> str:
        """The name and the version of the server."""

    @property
    def port(self) -> int:
        """The server's port on this machine."""

    @property
    def schema(self) -> str:
        """What the configuration writes before the name of a table."""

    @property
    def source(self) -> str:
        """The section `[source]` of the configuration, as TOML."""

    def build(self) -> None:
        """Creates the tables and fills them. Raises ChangelogError (CONNECTION)."""

    def session(self) -> AbstractContextManager[Session]:
        """Opens a session. An error of the database in the body is raised as ChangelogError (CONNECTION)."""


OpenDatabase = Callable[[], AbstractContextManager[DemoDatabase]]
"""Starts a server, which stops at the end of the context. Raises ChangelogError."""
