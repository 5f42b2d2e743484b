"""Reads the tokens of one SQL statement from left to right."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from changelog.connectors.sources.mysql.decode.statements.effects import TableName
from changelog.connectors.sources.mysql.decode.statements.sql_tokens import Lexeme, Token, UnclearStatementError

TOKENS_MAX: Final = 50_000
"""The most tokens that are read. Only statements that contain many rows, or thousands of partitions, are longer."""

UNDECODED: Final = "\ufffd"
"""What Python's decoders put in the place of bytes that are not valid."""

_DEPTHS: Final = {"(": 1, ")": -1}
_END: Final = Token(kind=Lexeme.SYMBOL, text="")


class StatementReader:
    """The tokens of a statement, and a place among them.

    `database` is the session's current database. If `fold_names` is set, names of tables and databases are converted to
    lower case, as a server with `lower_case_table_names` compares them. `complete` is false if the statement has more
    tokens than TOKENS_MAX, or text that cannot be divided into tokens; only the tokens before that are read.
    """

    def __init__(self, tokens: Iterable[Token], database: str, *, fold_names: bool) -> None:
        self._tokens: list[Token] = []
        self._at = 0
        self._fold_names = fold_names
        self._database = self._folded(database)
        try:
            self._tokens.extend(islice(tokens, TOKENS_MAX + 1))
        except UnclearStatementError:
            self.complete = False
        else:
            self.complete = len(self._tokens) <= TOKENS_MAX

    @property
    def keyword(self) -> str:
        """The next word in upper case; empty if a name in quotes, a string, a symbol or the end is next."""
        return self.peek().keyword

    @property
    def at_end(self) -> bool:
        """Whether no tokens are left."""
        return self._at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> Token:
        """Returns the next token, or the token `ahead` places after it; an empty symbol after the end."""
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def take(self) -> Token:
        """Returns the next token and skips it. Raises UnclearStatementError at the end."""
        if self.at_end:
            raise UnclearStatementError
        token = self.peek()
        self._at += 1
        return token

    def accept(self, *keywords: str) -> bool:
        """Skips these words if they are next, in this order, and returns whether they were."""
        matches = all(self.peek(ahead).keyword == keyword for ahead, keyword in enumerate(keywords))
        if matches:
            self._at += len(keywords)
        return matches

    def accept_symbol(self, symbol: str) -> bool:
        """Skips a symbol if it is next, and returns whether it was."""
        token = self.peek()
        matches = token.kind is Lexeme.SYMBOL and token.text == symbol
        if matches:
            self._at += 1
        return matches

    def skip_any(self, keywords: frozenset[str]) -> None:
        """Skips words as long as they are among these."""
        while self.keyword in keywords:
            self._at += 1

    def find(self, keywords: frozenset[str]) -> str:
        """Skips everything up to and including the first of these words, and returns this word.

        If none of these words follows, skips all tokens and returns an empty text.
        """
        while not self.at_end:
            keyword = self.take().keyword
            if keyword in keywords:
                return keyword
        return ""

    def name(self) -> str:
        """Skips a name, and returns it as it is written. (For the name of a table, see `table`.)

        Raises UnclearStatementError if something else is next, or a name with bytes that could not be decoded.
        """
        token = self.take()
        if not token.is_name or UNDECODED in token.text:
            raise UnclearStatementError
        return token.text

    def database(self) -> str:
        """Skips the name of a database, and returns it."""
        return self._folded(self.name())

    def table(self) -> TableName:
        """Skips the name of a table, with or without its database, and returns it."""
        first = "" if self.accept_symbol(".") else self.database()
        if not first or self.accept_symbol("."):
            return TableName(first or self._database, self.database())
        return TableName(self._database, first)

    def all_tables(self, stop: frozenset[str] = frozenset()) -> frozenset[TableName]:
        """Skips the tokens up to a word in `stop` that is outside of parentheses. Returns each name among these tokens
        as the name of a table, even if it is a keyword, or the name of a column or an alias.

        Raises UnclearStatementError if the end is reached without such a word, and the statement has more tokens than
        were read.
        """
        names: set[TableName] = set()
        depth = 0
        while not self.at_end and (depth or self.keyword not in stop):
            if not self.peek().is_name:
                token = self.take()
                depth += _DEPTHS.get(token.text, 0) if token.kind is Lexeme.SYMBOL else 0
            elif self.peek(1).text == "." and self.peek(2).is_name:
                names.add(self.table())
            else:
                names.add(TableName(self._database, self.database()))
        if self.at_end and not self.complete:
            raise UnclearStatementError
        return frozenset(names)

    def _folded(self, name: str) -> str:
        return name.lower() if self._fold_names else name
