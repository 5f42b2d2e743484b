"""Makes the statements that write stamps on PostgreSQL, and says which errors mean that the server refused a stamp."""

from __future__ import annotations

_SETTING = "'changelog.provenance'"
_PREVIOUS = f"SELECT pg_catalog.current_setting({_SETTING}, true)"

_EMIT = "pg_catalog.pg_logical_emit_message(true, 'provenance', CAST({0} AS text))"


def statement(parameter: str, *, emit: bool) -> str:
    """Returns the statement that stamps the rest of the transaction; its result is the previous stamp, or null.

    `parameter` is the placeholder of the stamp's text in the style of the driver. The setting is local to the
    transaction, because a session may serve another application afterwards. With `emit`, the statement also writes the
    stamp into the database's log. Without `emit`, the trigger on the tables does this.
    """
    columns = [_PREVIOUS, f"pg_catalog.set_config({_SETTING}, CAST({parameter} AS text), true)"]
    return ", ".join([*columns, _EMIT.format(parameter)] if emit else columns)


def sqlstate(error: BaseException) -> str | None:
    """Returns the SQLSTATE by which the server explains an error; None if the error comes from elsewhere.

    SQLAlchemy and Django raise errors of their own, which hold the driver's error.
    """
    for source in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(source, "sqlstate", None) or getattr(source, "pgcode", None)
        if isinstance(state, str):
            return state
    return None


def is_refusal(error: BaseException) -> bool:
    """Returns whether the server itself refused a statement, for example because the role lacks a right.

    Three kinds of errors are not refusals, because the application must see them. Errors without an SQLSTATE come from
    the driver. Errors of class 08 are about the connection. Errors of class 57 say that an operator or a timeout has
    ended the statement.
    """
    state = sqlstate(error)
    return state is not None and state[:2] not in ("08", "57")
