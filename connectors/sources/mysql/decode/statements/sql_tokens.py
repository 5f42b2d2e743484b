"""Splits an SQL statement of MySQL or MariaDB into words, names, strings and symbols, without the comments.

See "Lexical Structure" and "Comments" in the MySQL manual.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache


class UnclearStatementError(Exception):
    """The statement has a form that we do not know."""


class Lexeme(Enum):
    """What kind of text a token is."""

    WORD = auto()  # a keyword, a number, or a name without quotes
    NAME = auto()  # a name in quotes
    STRING = auto()
    SYMBOL = auto()  # one character


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token, with its `text` in the statement. The text of a name or string in quotes is what the quotes enclose.

    If the quotes enclose a doubled quote, `text` has a single one. Escapes with a backslash stay as they are written.
    """

    kind: Lexeme
    text: str

    @property
    def keyword(self) -> str:
        """The word in upper case; empty if the token is not a word."""
        return self.text.upper() if self.kind is Lexeme.WORD else ""

    @property
    def is_name(self) -> bool:
        """Whether the token can be a name."""
        return self.kind in (Lexeme.WORD, Lexeme.NAME)


def tokens(sql: str, *, ansi_quotes: bool, no_backslash_escapes: bool) -> Iterator[Token]:
    """Yields the tokens of a statement. `ansi_quotes` and `no_backslash_escapes` are SQL modes of its session.

    The content of `/*!50100 … */` and `/*M!100100 … */` is part of the statement. (Before a server logs a statement, it
    disables such comments if it does not execute them itself.) Raises UnclearStatementError if a quote or an executed
    comment has no end.
    """
    pattern = _pattern(ansi_quotes=ansi_quotes, no_backslash_escapes=no_backslash_escapes)
    at, executed = 0, 0
    while at < len(sql):
        match = pattern.match(sql, at)
        if match is None:
            raise UnclearStatementError
        at = match.end()
        if match.lastgroup == "execute":
            executed += 1
        elif match.lastgroup == "end":
            if executed:
                executed -= 1
            else:  # no comment is open: a star, before a division or a comment
                at -= 1
                yield Token(kind=Lexeme.SYMBOL, text="*")
        elif match.lastgroup != "ignored":
            yield _made(match)
    if executed:
        raise UnclearStatementError


def _made(match: re.Match[str]) -> Token:
    text = match[0]
    match match.lastgroup:
        case "word":
            return Token(kind=Lexeme.WORD, text=text)
        case "name":
            return Token(kind=Lexeme.NAME, text=text[1:-1].replace(text[0] * 2, text[0]))
        case "string":
            return Token(kind=Lexeme.STRING, text=text[1:-1].replace(text[0] * 2, text[0]))
        case _:
            return Token(kind=Lexeme.SYMBOL, text=text)


@cache
def _pattern(*, ansi_quotes: bool, no_backslash_escapes: bool) -> re.Pattern[str]:
    quote = _doubled if no_backslash_escapes else _escaped
    names = [_doubled("`"), _doubled('"')] if ansi_quotes else [_doubled("`")]
    strings = [quote("'")] if ansi_quotes else [quote("'"), quote('"')]
    groups = {
        "ignored": r"[\x00-\x20]+|#[^\n]*|--(?=[\x00-\x20]|\Z)[^\n]*|/\*(?!M?!).*?(?:\*/|\Z)",
        "execute": r"/\*M?!(?:[0-9]{5,6})?",
        "end": r"\*/",
        "name": "|".join(names),
        "string": "|".join(strings),
        "word": r"[0-9A-Za-z$_\u0080-\U0010ffff]+",
        "symbol": r"""[^'"`]""",
    }
    return re.compile("|".join(f"(?P<{name}>{group})" for name, group in groups.items()), re.DOTALL)


def _doubled(mark: str) -> str:
    """Returns the pattern of a text in quotes, in which a quote is written twice."""
    return f"{mark}[^{mark}]*(?:{mark}{mark}[^{mark}]*)*{mark}"


def _escaped(mark: str) -> str:
    """Returns the pattern of a text in quotes, in which a quote is written twice, or after a backslash."""
    return rf"{mark}[^{mark}\\]*(?:(?:{mark}{mark}|\\.)[^{mark}\\]*)*{mark}"
