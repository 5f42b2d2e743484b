"""Reads statements about transactions, savepoints and XA transactions. Their first word has already been read."""

from collections.abc import Sequence
from typing import Final

from changelog.connectors.sources.mysql.decode.events.events import XaId
from changelog.connectors.sources.mysql.decode.statements.effects import Transactional, Verb
from changelog.connectors.sources.mysql.decode.statements.sql_tokens import Lexeme, UnclearStatementError
from changelog.connectors.sources.mysql.decode.statements.statement_reader import StatementReader


def rolled_back(reader: StatementReader) -> Sequence[Transactional]:
    """Returns what ROLLBACK does, or what ROLLBACK TO a savepoint does."""
    reader.accept("WORK")
    if not reader.accept("TO"):
        return (Transactional(verb=Verb.ROLLBACK),)
    if reader.keyword == "SAVEPOINT" and reader.peek(1).is_name:
        reader.take()
    return (Transactional(verb=Verb.ROLLBACK_TO, savepoint=reader.name()),)


def saved(reader: StatementReader) -> Sequence[Transactional]:
    """Returns what SAVEPOINT does."""
    return (Transactional(verb=Verb.SAVEPOINT, savepoint=reader.name()),)


def released(reader: StatementReader) -> Sequence[Transactional]:
    """Returns what RELEASE SAVEPOINT does."""
    reader.accept("SAVEPOINT")
    return (Transactional(verb=Verb.RELEASE, savepoint=reader.name()),)


def xa(reader: StatementReader) -> Sequence[Transactional]:
    """Returns what XA START, END, PREPARE, COMMIT or ROLLBACK does. Any other XA statement changes nothing."""
    verb = _XA_VERBS.get(reader.take().keyword)
    return () if verb is None else (Transactional(verb=verb, xa_id=_xa_id(reader)),)


def _xa_id(reader: StatementReader) -> XaId:
    """Reads the id of an XA transaction, such as `X'6162',X'',1`. A client can leave out the second and third part."""
    gtrid = _part(reader)
    bqual = _part(reader) if reader.accept_symbol(",") else b""
    format_id = _number(reader) if reader.accept_symbol(",") else 1
    return XaId(format_id=format_id, gtrid=gtrid, bqual=bqual)


def _part(reader: StatementReader) -> bytes:
    """Returns the bytes of a string, which may be written in hexadecimal."""
    hexadecimal = reader.accept("X")
    token = reader.take()
    try:
        if hexadecimal and token.kind is Lexeme.STRING:
            return bytes.fromhex(token.text)
        if token.keyword.startswith("0X"):
            return bytes.fromhex(token.text[2:])
    except ValueError:
        raise UnclearStatementError from None
    if token.kind is not Lexeme.STRING:
        raise UnclearStatementError
    return token.text.encode()


def _number(reader: StatementReader) -> int:
    text = reader.take().text
    if not (text.isascii() and text.isdigit()):
        raise UnclearStatementError
    return int(text)


_XA_VERBS: Final = {
    "START": Verb.XA_START,
    "BEGIN": Verb.XA_START,
    "END": Verb.XA_END,
    "PREPARE": Verb.XA_PREPARE,
    "COMMIT": Verb.XA_COMMIT,
    "ROLLBACK": Verb.XA_ROLLBACK,
}
