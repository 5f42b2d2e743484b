"""Draws random values of every type of column, as SQL expressions. The values include the ends of each type's range."""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from changelog.connectors.servers.mysql import Flavour

VECTORS_SINCE: Mapping[Flavour, tuple[int, int]] = {"mariadb": (11, 7), "mysql": (9, 0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A type as a column's definition names it, and a function that draws the SQL of one value."""

    definition: str
    draw: Callable[[Random], str]


def integer(bits: int, *, unsigned: bool = False) -> Callable[[Random], str]:
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return lambda random: str(random.choice([low, high, 0, 1, random.randint(low, high), random.randint(0, 200)]))


def number(random: Random) -> str:
    """Draws a number of any size. A column stores the nearest number that it can hold."""
    digits = "".join(random.choices("0123456789", k=random.randrange(1, 66)))
    at = random.randrange(len(digits) + 1)
    exact = f"{random.choice(['', '-'])}{digits[:at] or '0'}.{digits[at:] or '0'}"
    return f"'{random.choice([exact, '0', '-0', '0.5', '-0.005', '9' * 70, '-' + '9' * 70, '16777217', '0.1'])}'"


def floating(random: Random) -> str:
    exponent = random.randrange(-330, 309) if random.random() < 0.5 else random.randrange(-46, 39)
    any_size = f"{random.uniform(-10, 10)!r}e{exponent}"
    ends = ["-0", "5e-324", "1.7976931348623157e308", "3.4028234663852886e38", "1e-45", "1.1754943508222875e-38"]
    return f"'{random.choice([any_size, any_size, str(random.randrange(1 << 60)), *ends])}'"


def bits(count: int) -> Callable[[Random], str]:
    return lambda random: f"b'{random.choice([0, (1 << count) - 1, random.getrandbits(count)]):b}'"


def date(random: Random) -> str:
    ends = ["0000-00-00", "2024-00-00", "2024-01-00", "0000-01-01", "0001-01-01", "9999-12-31", "2024-02-29"]
    year, month, day = random.randrange(10000), random.randrange(13), random.randrange(32)
    return f"'{random.choice([f'{year:04}-{month:02}-{day:02}', *ends])}'"


def clock(random: Random, hours: int) -> str:
    fraction = random.choice([0, 5 * 10**5, 999999, random.randrange(10**6)])
    return f"{random.randrange(hours):02}:{random.randrange(60):02}:{random.randrange(60):02}.{fraction:06}"


def time(random: Random) -> str:
    text = random.choice([clock(random, 839), "00:00:00", "838:59:59", clock(random, 1)])
    return f"'{random.choice(['', '-'])}{text}'"


def datetime_(random: Random) -> str:
    return f"{date(random)[:-1]} {random.choice([clock(random, 24), '00:00:00'])}'"


def timestamp(random: Random) -> str:
    ends = ["0000-00-00 00:00:00", "1970-01-01 00:00:01", "2038-01-19 03:14:07"]
    day = f"{random.randrange(1971, 2038)}-{random.randrange(1, 13):02}-{random.randrange(1, 29):02}"
    return f"'{random.choice([f'{day} {clock(random, 24)}', *ends])}'"


def octets(random: Random, most: int = 12) -> str:
    """Draws bytes. If the column has a character set, it stores those bytes that are characters of the set."""
    value = random.choice(
        [random.randbytes(random.randrange(most)), bytes(random.randrange(most)), b"a  ", b"\0 \0", b""]
    )
    return f"x'{value.hex()}'"


def text(random: Random) -> str:
    """Draws text of any script. A column stores the characters that its character set has, and `?` instead of each
    other character.
    """
    characters = "aZ 09~\\'\"\n\0äßéŁΩжאبกあア漢字한글€😀"
    value = "".join(random.choices(characters, k=random.randrange(12))) + random.choice(["", " ", "  "])
    return f"CONVERT(x'{value.encode().hex()}' USING utf8mb4)"


def either(*draws: Callable[[Random], str]) -> Callable[[Random], str]:
    return lambda random: random.choice(draws)(random)


def labels(count: int, *, several: bool) -> Callable[[Random], str]:
    def draw(random: Random) -> str:
        names = [f"l{n}" for n in random.sample(range(count), random.randrange(count + 1))]
        return f"'{','.join(names) if several else (names or ['wrong'])[0]}'"

    return draw


def document(random: Random) -> str:
    double = random.uniform(-10, 10) * 10.0 ** random.randrange(-20, 20)
    value = [random.randrange(1 << 60), double, "text ä", None, {"a": random.random() < 0.5, "b c": []}]
    return f"CONVERT(x'{json.dumps(random.sample(value, random.randrange(6))).encode().hex()}' USING utf8mb4)"


def point(random: Random) -> str:
    return f"ST_GeomFromText('POINT({random.uniform(-9, 9)!r} {random.randrange(9)})')"


def vector(random: Random) -> str:
    return f"x'{struct.pack('<3f', -0.0, random.uniform(-1, 1), random.gauss(0, 1e30)).hex()}'"


def uuid(random: Random) -> str:
    """Draws a UUID that MariaDB accepts: one of version 1 to 7, or one of the older variant, which has no versions."""
    first, last = (f"{random.choice([0, random.getrandbits(48)]):012x}" for _ in range(2))
    middle = (
        f"{random.choice('1234567')}{random.getrandbits(12):03x}-{random.choice('0789ab')}{random.getrandbits(12):03x}"
    )
    return f"'{first[:8]}-{first[8:]}-{middle}-{last}'"


def inet4(random: Random) -> str:
    return f"'{'.'.join(str(random.choice([0, 1, 255, random.randrange(256)])) for _ in range(4))}'"


def inet6(random: Random) -> str:
    words = [random.choice([0, 0, 0, 1, 0xFFFF, random.getrandbits(16)]) for _ in range(8)]
    if random.random() < 0.3:
        words[:6] = 0, 0, 0, 0, 0, random.choice([0, 0xFFFF])
    return f"'{':'.join(f'{word:x}' for word in words)}'"


def repeated(draw: Callable[[Random], str]) -> Callable[[Random], str]:
    return lambda random: f"REPEAT({draw(random)}, {random.choice([1, 3, 30])})"


def label_list(count: int) -> str:
    return ",".join(f"'l{n}'" for n in range(count))


def numbers() -> Iterator[Typed]:
    for name, size in (("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64)):
        yield Typed(definition=name, draw=integer(size))
        for attribute in ("UNSIGNED", "ZEROFILL"):
            yield Typed(definition=f"{name} {attribute}", draw=integer(size, unsigned=True))
    yield Typed(definition="TINYINT(1)", draw=integer(8))
    yield Typed(
        definition="YEAR", draw=lambda random: str(random.choice([0, 1901, 2155, random.randrange(1901, 2156)]))
    )
    for name in ("FLOAT", "DOUBLE", "FLOAT UNSIGNED", "DOUBLE ZEROFILL", "FLOAT(30)", "FLOAT(7,2)", "DOUBLE(10,2)"):
        yield Typed(definition=name, draw=either(floating, number))
    for precision, scale in ((1, 0), (5, 0), (9, 9), (10, 2), (14, 4), (19, 10), (30, 30), (65, 0), (65, 30)):
        for attribute in ("", " UNSIGNED", " ZEROFILL"):
            yield Typed(definition=f"DECIMAL({precision},{scale}){attribute}", draw=number)
    for count in (1, 7, 8, 9, 33, 64):
        yield Typed(definition=f"BIT({count})", draw=bits(count))


def moments() -> Iterator[Typed]:
    yield Typed(definition="DATE", draw=date)
    for digits in range(7):
        yield Typed(definition=f"TIME({digits})", draw=time)
        yield Typed(definition=f"DATETIME({digits})", draw=datetime_)
        yield Typed(definition=f"TIMESTAMP({digits}) NULL", draw=timestamp)


def texts(charsets: Sequence[str]) -> Iterator[Typed]:
    for name in charsets:
        for type_ in ("CHAR(20)", "VARCHAR(20)"):
            yield Typed(definition=f"{type_} CHARACTER SET {name}", draw=either(octets, text))
    for type_ in ("CHAR(0)", "CHAR(255)", "VARCHAR(255)", "VARCHAR(300)", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"):
        yield Typed(definition=f"{type_} CHARACTER SET utf8mb4", draw=either(octets, text))
    for type_ in ("BINARY(0)", "BINARY(5)", "BINARY(255)", "VARBINARY(5)", "VARBINARY(300)"):
        yield Typed(definition=type_, draw=octets)
    for type_ in ("TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"):
        yield Typed(definition=type_, draw=partial(octets, most=200))
    for count in (2, 300):
        yield Typed(definition=f"ENUM({label_list(count)})", draw=labels(count, several=False))
    for count in (2, 9, 24, 25, 64):
        yield Typed(definition=f"SET({label_list(count)})", draw=labels(count, several=True))
    for name in ("binary", "cp932", "latin1", "ucs2", "utf8mb4"):
        if name != "latin1":
            yield Typed(definition=f"ENUM('ｱ','表''',',\\\\') CHARACTER SET {name}", draw=integer(2, unsigned=True))
        else:
            yield Typed(definition="SET('ä','€','ÿ''') CHARACTER SET latin1", draw=integer(3, unsigned=True))


def types(flavour: Flavour, version: tuple[int, int], charsets: Sequence[str]) -> Iterator[Typed]:
    """Yields all types that the server has, except those of `old_types`. `charsets` are the server's character sets."""
    yield from (*numbers(), *moments(), *texts(charsets))
    yield Typed(definition="JSON", draw=document)
    yield from (Typed(definition=name, draw=point) for name in ("GEOMETRY", "POINT"))
    if version >= VECTORS_SINCE[flavour]:
        yield Typed(definition="VECTOR(3)", draw=vector)
    if flavour == "mariadb":
        yield Typed(definition="YEAR(2)", draw=lambda random: str(random.randrange(1970, 2070)))
        yield Typed(definition="UUID", draw=uuid)
        yield Typed(definition="INET4", draw=inet4)
        yield Typed(definition="INET6", draw=inet6)
        yield Typed(definition="DECIMAL(38,38)", draw=number)
        for type_ in ("VARCHAR(500)", "TINYTEXT", "TEXT", "LONGTEXT"):
            yield Typed(definition=f"{type_} COMPRESSED CHARACTER SET latin1", draw=repeated(either(octets, text)))
        for type_ in ("VARBINARY(500)", "TINYBLOB", "BLOB", "MEDIUMBLOB"):
            yield Typed(definition=f"{type_} COMPRESSED", draw=repeated(octets))


def old_types() -> Iterator[Typed]:
    """Yields the types that MariaDB stores in an older layout if `mysql56_temporal_format` is OFF."""
    yield Typed(definition="TIME", draw=time)
    yield Typed(definition="DATETIME", draw=datetime_)
    yield Typed(definition="TIMESTAMP NULL", draw=timestamp)
