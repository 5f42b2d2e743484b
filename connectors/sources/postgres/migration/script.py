"""A file of SQL as its statements, each with its line, and what of it cannot be tried in a transaction. Pure.

Statements are parted as psql parts them (its psqlscan.l): at a semicolon outside of quotes, comments, parentheses and
the body of a function in SQL (BEGIN ATOMIC … END).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from connectors.sources.migrations import Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What cannot be tried: where, and why as a sentence without its subject."""

    line: int
    what: str
    why: str


# Each is a token that may hold a semicolon, or else one character. A quote that is not closed reaches to the end.
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

_ENDS = "would end the transaction in which the migration is tried; leave it out"
_ALONE = "cannot run in a transaction, so it cannot be tried; leave it out"
_STAYS = "does what no rollback undoes; try it with --embedded, or leave it out"
_BEYOND = "reaches beyond the database; leave it out"
_PSQL = "is for psql alone; write plain SQL"

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
"""The first pattern that a statement begins with decides; an empty reason lets it pass."""

_LASTING = re.compile(
    r"\b(setval|pg_(?:create|copy|drop)_\w*replication_slot|pg_replication_slot_advance|"
    r"pg_switch_wal|pg_create_restore_point|pg_reload_conf|pg_promote|pg_terminate_backend|pg_cancel_backend)\s*\(",
    re.IGNORECASE,
)
"""What a rollback does not undo."""

_OUTSIDE = re.compile(r"\b(dblink\w*|lo_export)\s*\(|\b(?:FROM|TO)\s+(PROGRAM)\b", re.IGNORECASE)
"""What reaches beyond the database, whichever that is."""


def statements(text: str) -> Iterator[Statement | Refusal]:
    """The statements of `text`, in order; what is psql's own stands among them as refused, and ends them."""
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
            yield Refusal(line=reader.line, what=command, why=_PSQL)
            return
        done = reader.take(match)
        if done is not None:
            yield done
            if (refused := refusal(done, lasting=True)) is not None and refused.why == _PSQL:
                return  # what follows may be data
    rest = reader.rest()
    if rest is not None:
        yield rest


def refusal(statement: Statement, *, lasting: bool) -> Refusal | None:
    """Why the statement cannot be tried in a transaction that is rolled back; None when it can.

    `lasting` says that what a rollback does not undo is refused, too.
    """
    words = statement.words.strip()
    for pattern, why in _REFUSED:
        match = re.match(pattern, words, re.IGNORECASE | re.DOTALL)
        if match is not None:
            return Refusal(line=statement.line, what=_spelled(words), why=why) if why else None
    runs_its_body = re.match(r"DO\b", words, re.IGNORECASE)
    code = statement.code if runs_its_body else statement.words
    if (match := _OUTSIDE.search(code)) is not None:
        return Refusal(line=statement.line, what=match[1] or match[2], why=_BEYOND)
    if lasting and (match := _LASTING.search(code)) is not None:
        return Refusal(line=statement.line, what=match[1], why=_STAYS)
    return None


def _spelled(words: str) -> str:
    """The keywords by which a statement is known, as in COPY or CREATE INDEX CONCURRENTLY."""
    known = _KEYWORDS.match(words)
    return " ".join((known[0] if known else words).upper().split())


@dataclass(slots=True, kw_only=True)
class _Reader:
    """The statement that is being read; `line` is where the next token stands."""

    line: int
    first: int | None = None
    parts: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    depth: int = 0
    atomic: int = 0

    def skip(self, blank: str) -> None:
        """A comment or blanks: nothing before a statement, a blank in it."""
        if self.first is not None:
            self.parts.append(blank)
            self.words.append(" ")
            self.code.append(" ")
        self.line += blank.count("\n")

    def take(self, match: re.Match[str]) -> Statement | None:
        """The next token; the statement, if it ends one."""
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
        """What was read since the last statement; None when that is none."""
        found = None
        if self.first is not None:
            found = Statement(
                line=self.first, text="".join(self.parts), words="".join(self.words), code="".join(self.code)
            )
        self.first, self.parts, self.words, self.code, self.depth, self.atomic = None, [], [], [], 0, 0
        return found

    def _count(self, token: str, kind: str | None) -> None:
        """Parentheses, and what opens and closes the body of a function in SQL."""
        if token in "()":
            self.depth += 1 if token == "(" else -1
        elif kind == "word" and self.depth == 0 and _ROUTINE.match("".join(self.words[:_HEAD_TOKENS])):
            word = token.upper()
            if word == "ATOMIC" or (self.atomic and word == "CASE"):
                self.atomic += 1
            elif word == "END" and self.atomic:
                self.atomic -= 1


def _comment_end(text: str, begin: int) -> int:
    """Behind the comment that opens at `begin`; comments nest."""
    depth = 0
    for match in _COMMENT_END.finditer(text, begin):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(text)
