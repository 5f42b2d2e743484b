"""Stamps the statements of one of Django's database connections, by a wrapper around `execute`."""

from __future__ import annotations

from typing import Any, Callable

from changelog_stamps.django.options import chosen, options
from changelog_stamps.sqlcommenter import commented
from changelog_stamps.statements import statement
from changelog_stamps.transactions import refused

_IDLE, _IN_TRANSACTION = 0, 2
"""States of a transaction in libpq. Both of Django's PostgreSQL drivers use these numbers."""

_STATEMENTS = {emit: statement("%(stamp)s", emit=emit) for emit in (False, True)}


class StampedStatements:
    """Wraps the `execute` of one connection.

    On PostgreSQL, a transaction is stamped before its first statement. It is stamped again if the current stamp has
    changed, and after a rollback to a savepoint, because this rollback may have undone the last stamp.
    """

    def __init__(self) -> None:
        self._last_text = ""

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        """Stamps a statement or its transaction, and executes the statement."""
        connection = context["connection"]
        if connection.vendor == "mysql" and isinstance(sql, str):
            sql = commented(sql, formatted=params is not None, stamp=chosen())
        elif connection.vendor == "postgresql" and connection.in_atomic_block and not connection.needs_rollback:
            self._stamp(connection.connection, sql)
        return execute(sql, params, many, context)

    def _stamp(self, driver: Any, sql: Any) -> None:
        """Stamps the transaction, unless it already has the current stamp, or the server accepts only a rollback."""
        status = driver.info.transaction_status
        rolls_back = isinstance(sql, str) and sql.lstrip()[:11].upper() == "ROLLBACK TO"
        if status == _IDLE or rolls_back:
            self._last_text = ""
        text = chosen().text or ""
        if rolls_back or status not in (_IDLE, _IN_TRANSACTION) or text == self._last_text:
            return
        self._last_text = text
        emit = text != "" and bool(options().get("emit"))
        in_savepoint = status == _IN_TRANSACTION
        try:
            _write(driver, text, emit=emit, in_savepoint=in_savepoint)
        except Exception as error:  # noqa: BLE001 - the errors of either driver
            refused(error)
            _undo(driver, in_savepoint=in_savepoint)


def _write(driver: Any, text: str, *, emit: bool, in_savepoint: bool) -> None:
    with driver.cursor() as cursor:
        if in_savepoint:
            cursor.execute("SAVEPOINT changelog_stamp")
        cursor.execute(_STATEMENTS[emit], {"stamp": text})
        if in_savepoint:
            cursor.execute("RELEASE SAVEPOINT changelog_stamp")


def _undo(driver: Any, *, in_savepoint: bool) -> None:
    """Makes the transaction usable again after the server refused a stamp.

    If no savepoint was set, the refused stamp was the first statement of the transaction. So a rollback of the whole
    transaction loses nothing, and the next statement begins the transaction again.
    """
    if not in_savepoint:
        driver.rollback()
        return
    with driver.cursor() as cursor:
        cursor.execute("ROLLBACK TO SAVEPOINT changelog_stamp")
        cursor.execute("RELEASE SAVEPOINT changelog_stamp")
