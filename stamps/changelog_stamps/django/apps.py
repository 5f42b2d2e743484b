"""Defines the Django application `changelog_stamps.django`, which stamps the statements of every connection."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created

from changelog_stamps.django.statements import StampedStatements


class StampsConfig(AppConfig):  # type: ignore[misc] # Django ships no types
    """Stamps the statements of all connections of the application, in whichever thread a connection is made."""

    name = "changelog_stamps.django"
    label = "changelog_stamps"

    def ready(self) -> None:
        """Asks Django to report every new connection. Django calls this method once."""
        connection_created.connect(_stamp_connection, dispatch_uid="changelog_stamps")


def _stamp_connection(connection: Any, **_: Any) -> None:
    """Adds the wrapper that stamps statements to a connection. If a connection was lost and made again, it has the
    wrapper already.
    """
    wrappers = connection.execute_wrappers
    if not any(isinstance(wrapper, StampedStatements) for wrapper in wrappers):
        wrappers.append(StampedStatements())
