"""Splits the SQL of a migration into statements with line numbers, and finds those that cannot be rehearsed.

A rehearsal runs the statements in a transaction that is rolled back. So a statement that cannot run in a transaction,
or has effects that a rollback does not undo, cannot be rehearsed.

Statements are split as psql splits them (its psqlscan.l): at a semicolon outside quotes, comments, parentheses and the
body of an SQL function (BEGIN ATOMIC … END).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from changelog.connectors.sources.migrations import Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedStatement:
    """A statement or a part of it that cannot be rehearsed.

    `what` names it, and `why` is the rest of a sentence that begins with `what`.
    """

    line: int
    what: str
    why: str


# Each alternative is a token, such as a comment or a quoted text, or a single character. An unclosed quote extends to
# the end of the text.
_TOKEN = re.compile(
    r"""
    (?P<line>--[^\n]*)
    | (?P<block>/\*)
    | (?P<escape>[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z))
    | (?P<text>'(?:[^']|'')*(?:'|\Z))
    | (?P<name>"(?:[^"]|"")*(?:"|\Z))
    | (?P<dollar>\$(?P<tag>(?:[^\W\d]\w*)?)\$(?P<body>.*?)(?:\$(?P=tag)\$|\Z))
    | (?P<word>[^\W\d][\w$]*)
    | (?P<space>\s+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ROUTINE = re.compile(r"CREATE\s.*\b(?:FUNCTION|PROCEDURE)\b", re.IGNORECASE)
_HEAD_TOKENS = 24
_COMMENT_END = re.compile(r"/\*|\*/")

_KEYWORDS = re.compile(
    r"(?:(?:CREATE|DROP|ALTER|START|PREPARE)\s+)?(?:UNIQUE\s+)?\w+(?:\s+CONCURRENTLY\b)?", re.IGNORECASE
)

_ENDS = "would end the transaction of the rehearsal; leave the statement out"
_ALONE = "cannot run in a transaction, so it cannot be rehearsed; leave the statement out"
_STAYS = "has effects that a rollback does not undo; use --embedded, or leave it out"
_BEYOND = "has effects outside the database; leave it out"
_PSQL = "works only in psql; write plain SQL"

_REFUSED: tuple[tuple[str, str], ...] = (
    (r"ROLLBACK\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b", ""),
    (r"BEGIN\b|START\s+TRANSACTION\b|COMMIT\b|END\b|ROLLBACK\b|ABORT\b|PREPARE\s+TRANSACTION\b", _ENDS),
    (r"VACUUM\b", _ALONE),
    (r"(?:CREATE|DROP)\s+(?:DATABASE|TABLESPACE)\b", _ALONE),
    (r"ALTER\s+SYSTEM\b", _ALONE),
    (r"CREATE\s+(?:UNIQUE\s+)?INDEX\s+CONCURRENTLY\b|DROP\s+INDEX\s+CONCURRENTLY\b", _ALONE),
    (r"REINDEX\b.*\b(?:CONCURRENTLY|DATABASE|SYSTEM)\b", _ALONE),
    (r"ALTER\s+TABLE\b.*\bDETACH\s+PARTITION\b.*\bCONCURRENTLY\b", _ALONE),
    (r"COPY\b.*\b(?:FROM\s+STDIN|TO\s+STDOUT)\b", _PSQL),
)
"""The first pattern that matches the start of a statement decides; an empty reason accepts the statement."""

_LASTING = re.compile(
    r"\b(setval|pg_(?:create|copy|drop)_\w*replication_slot|pg_replication_slot_advance|"
    r"pg_switch_wal|pg_create_restore_point|pg_reload_conf|pg_promote|pg_terminate_backend|pg_cancel_backend)\s*\(",
    re.IGNORECASE,
)
"""Functions whose effects a rollback does not undo."""

_OUTSIDE = re.compile(r"\b(dblink\w*|lo_export)\s*\(|\b(?:FROM|TO)\s+(PROGRAM)\b", re.IGNORECASE)
"""Functions and clauses with effects outside the database."""


def statements(text: str) -> Iterator[Statement | RefusedStatement]:
    """Yields the statements of `text` in order. A psql command yields a RefusedStatement and ends the iteration."""
    reader = _Reader(line=1)
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # the last alternative takes any character
        if match.lastgroup == "block":
            end = _comment_end(text, at)
            reader.skip(text[at:end])
            at = end
            continue
        at = match.end()
        if match[0] == "\\":
            command = text[match.start() :].split(maxsplit=1)[0]
            yield RefusedStatement(line=reader.line, what=command, why=_PSQL)
            return
        statement = reader.take(match)
        if statement is not None:
            yield statement
            if (refused_statement := refusal(statement, lasting=True)) is not None and refused_statement.why == _PSQL:
                return  # the text after a COPY FROM STDIN may be data
    rest = reader.rest()
    if rest is not None:
        yield rest


def refusal(statement: Statement, *, lasting: bool) -> RefusedStatement | None:
    """Returns why the statement cannot be rehearsed in a transaction that is rolled back; None if it can.

    With `lasting`, statements with effects that a rollback does not undo are refused, too.
    """
    words = statement.words.strip()
    for pattern, why in _REFUSED:
        match = re.match(pattern, words, re.IGNORECASE | re.DOTALL)
        if match is not None:
            return RefusedStatement(line=statement.line, what=_spelled(words), why=why) if why else None
    runs_its_body = re.match(r"DO\b", words, re.IGNORECASE)
    code = statement.code if runs_its_body else statement.words
    if (match := _OUTSIDE.search(code)) is not None:
        return RefusedStatement(line=statement.line, what=match[1] or match[2], why=_BEYOND)
    if lasting and (match := _LASTING.search(code)) is not None:
        return RefusedStatement(line=statement.line, what=match[1], why=_STAYS)
    return None


def _spelled(words: str) -> str:
    """Returns the keywords by which people name a statement, such as COPY or CREATE INDEX CONCURRENTLY."""
    keywords = _KEYWORDS.match(words)
    return " ".join((keywords[0] if keywords else words).upper().split())


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Collects the tokens of a statement; `line` is the line of the next token."""

    line: int
    first: int | None = None
    parts: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    depth: int = 0
    atomic: int = 0

    def skip(self, blank: str) -> None:
        """Skips a comment or blanks. In a statement, they become one blank; between statements, they are dropped."""
        if self.first is not None:
            self.parts.append(blank)
            self.words.append(" ")
            self.code.append(" ")
        self.line += blank.count("\n")

    def take(self, match: re.Match[str]) -> Statement | None:
        """Takes the next token; returns the statement if the token ends it."""
        token, kind = match[0], match.lastgroup
        if kind in ("line", "space"):
            self.skip(token)
            return None
        if token == ";" and self.depth <= 0 and self.atomic <= 0:
            return self.rest()
        if self.first is None:
            self.first = self.line
        self.parts.append(token)
        self.words.append(token if kind in ("word", "other") else "''")
        self.code.append(match["body"] if match["dollar"] is not None else self.words[-1])
        self.line += token.count("\n")
        self._count(token, kind)
        return None

    def rest(self) -> Statement | None:
        """Returns the statement made of the tokens that were taken since the last statement; None if there are none."""
        statement = None
        if self.first is not None:
            statement = Statement(
                line=self.first, text="".join(self.parts), words="".join(self.words), code="".join(self.code)
            )
        self.first, self.parts, self.words, self.code, self.depth, self.atomic = None, [], [], [], 0, 0
        return statement

    def _count(self, token: str, kind: str | None) -> None:
        """Counts parentheses, and the keywords that open and close the body of an SQL function."""
        if token in "()":
            self.depth += 1 if token == "(" else -1
        elif kind == "word" and self.depth == 0 and _ROUTINE.match("".join(self.words[:_HEAD_TOKENS])):
            word = token.upper()
            if word == "ATOMIC" or (self.atomic and word == "CASE"):
                self.atomic += 1
            elif word == "END" and self.atomic:
                self.atomic -= 1


def _comment_end(text: str, begin: int) -> int:
    """Returns the offset after the comment that opens at `begin`. Comments can nest."""
    depth = 0
    for match in _COMMENT_END.finditer(text, begin):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(text)
