"""Makes the statements that write stamps on PostgreSQL, and says which errors mean that the server refused a stamp."""

from __future__ import annotations

_SETTING = "'changelog.provenance'"
_PREVIOUS = f"SELECT pg_catalog.current_setting({_SETTING}, true)"

_EMIT = "pg_catalog.pg_logical_emit_message(true, 'provenance', CAST({0} AS text))"


def statement(parameter: str, *, emit: bool) -> str:
    """Returns the statement that stamps the rest of the transaction. Its first column is the previous stamp, or null.

    `parameter` is the placeholder for the stamp's text, as the driver writes placeholders. The statement sets a setting
    for this transaction only, because the session may serve another application afterwards. A trigger on the tables
    writes the setting into the database's log. With `emit`, the statement itself writes the stamp into the log, too.
    """
    columns = [_PREVIOUS, f"pg_catalog.set_config({_SETTING}, CAST({parameter} AS text), true)"]
    return ", ".join([*columns, _EMIT.format(parameter)] if emit else columns)


def sqlstate(error: BaseException) -> str | None:
    """Returns the SQLSTATE that the server gave to an error; None if the error does not come from the server.

    SQLAlchemy and Django raise their own errors, so the SQLSTATE is also looked for in the driver's error inside these.
    """
    for source in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(source, "sqlstate", None) or getattr(source, "pgcode", None)
        if isinstance(state, str):
            return state
    return None


def is_refusal(error: BaseException) -> bool:
    """Returns whether the server itself refused a statement, for example because the role lacks a right.

    Three kinds of errors do not count as refusals, because the application must see them: errors of the driver, which
    have no SQLSTATE; errors of class 08, which are about the connection; and errors of class 57, which say that an
    operator or a timeout has ended the statement.
    """
    state = sqlstate(error)
    return state is not None and state[:2] not in ("08", "57")
