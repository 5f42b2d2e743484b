"""Tests that the MySQL source knows the character set of every collation. It must convert texts of every character set
to UTF-8 exactly as the server does.
"""

import itertools
from collections.abc import Iterable, Iterator
from random import Random

from pymysql.cursors import Cursor

from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.values.text.charsets import clean, to_utf8
from changelog.connectors.sources.mysql.values.text.collations import charset_name
from tests.integration.mysql.sessions import rows, session
from tests.servers.mysql import EVERY_VERSION

ROWS = 20_000
RANDOM_TEXTS = 3_000
CODES = 2_000
UNKNOWN = 9999

HIGH = range(0x80, 0x100)
BYTES = range(0x100)
ENCODINGS = {
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "utf8": "utf-8",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
}


@EVERY_VERSION
def test_every_collation_has_its_character_set(mysql_server: MysqlServer) -> None:
    table = "COLLATIONS" if mysql_server.flavour == "mysql" else "COLLATION_CHARACTER_SET_APPLICABILITY"
    with session(mysql_server, "information_schema") as connection, connection.cursor() as cursor:
        collations = rows(cursor, f"SELECT ID, CHARACTER_SET_NAME FROM {table}")
    names = {int(number): name.decode() for number, name in collations}
    assert len(names) > 200
    for number, name in names.items():
        assert charset_name(number, {}) == ("utf8mb3" if name == "utf8" else name)


def characters(name: str, length: int, random: Random) -> Iterator[bytes]:
    """Yields the characters of a character set as bytes. Also yields many byte strings that are no characters of it.

    If the character set is an encoding of Unicode, yields only some of its characters. `length` is the number of bytes
    of its longest character.
    """
    yield from (bytes([byte]) for byte in BYTES)
    if name in ENCODINGS:
        codes = [
            *random.sample(range(0x110000), CODES),
            *random.sample(range(0x10000), CODES),
            *range(0xD7F0, 0xE010, 16),
        ]
        yield from (chr(code).encode(ENCODINGS[name], "surrogatepass") for code in codes)
    elif length > 1:
        yield from map(bytes, itertools.product(HIGH, BYTES))
    if name in ("ujis", "eucjpms"):
        yield from map(bytes, itertools.product([0x8F], HIGH, HIGH))
    if name == "gb18030":
        yield from map(bytes, itertools.product([0x81, 0x82, 0x83, 0x84], range(0x30, 0x3A), HIGH, range(0x30, 0x3A)))
    yield from (random.randbytes(4) for _ in range(RANDOM_TEXTS))


def stored(cursor: Cursor, name: str, texts: Iterable[bytes]) -> dict[bytes, bytes]:
    """Inserts texts into a column with this character set, and queries the column.

    Returns a dictionary. Its keys are the texts that the column stored unchanged. Its values are what the query
    returned for them, in UTF-8.
    """
    cursor.execute("DROP TEMPORARY TABLE IF EXISTS held")
    cursor.execute(f"CREATE TEMPORARY TABLE held (id INT, held VARCHAR(40) CHARACTER SET {name}) ENGINE = MEMORY")
    result = {}
    iterator = iter(texts)
    while chunk := list(itertools.islice(iterator, ROWS)):
        cursor.execute("TRUNCATE held")
        values = ",".join(f"({number},x'{text.hex()}')" for number, text in enumerate(chunk))
        cursor.execute(f"INSERT INTO held VALUES {values}")
        for number, hexadecimal, printed in rows(cursor, "SELECT id, HEX(held), held FROM held"):
            if bytes.fromhex(hexadecimal.decode()) == chunk[int(number)]:
                result[chunk[int(number)]] = printed
    return result


def test_every_text_is_converted_as_the_server_converts_it(
    mysql_server: MysqlServer, mysql_database: str, seed: int
) -> None:
    random = Random(seed)
    with session(mysql_server, mysql_database) as connection, connection.cursor() as cursor:
        charsets = rows(cursor, "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS")
        lengths = {name.decode(): int(length) for name, length in charsets}
        del lengths["binary"]
        assert len(lengths) >= 39
        for name, length in lengths.items():
            convert = to_utf8(UNKNOWN, {UNKNOWN: name})
            single = stored(cursor, name, characters(name, length, random))
            choices = list(single)
            mixed = stored(cursor, name, (b"".join(random.choices(choices, k=6)) for _ in range(RANDOM_TEXTS)))
            assert len(single) >= 128
            assert len(mixed) > RANDOM_TEXTS // 2
            wrong = [
                (text.hex(), printed, converted)
                for text, printed in (single | mixed).items()
                if (converted := convert(text)) != clean(printed)
            ]
            assert not wrong, f"{len(wrong)} texts in {name}, such as {wrong[:5]}"
