"""Lists the types of PostgreSQL that Debezium can publish, and draws random values of them as SQL."""

import json
import uuid
from collections.abc import Callable, Sequence
from random import Random

from tests.campaigns._debezium import listed
from tests.campaigns._debezium.tables import Kind

DEFINITIONS = """
CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION ltree;
CREATE TYPE mood AS ENUM ('ok', 'x, y', '', 'NULL', 'ü"\\''');
CREATE DOMAIN price AS numeric(10,2);
"""

Draw = Callable[[Random], str]


def quoted(text: str) -> str:
    """Returns the SQL literal of a text."""
    return "'" + text.replace("'", "''") + "'"


def one_of(*literals: str) -> Draw:
    """Returns a function that draws one of these texts."""
    return lambda random: quoted(random.choice(literals))


def either(*draws: Draw) -> Draw:
    return lambda random: random.choice(draws)(random)


def integer(bits: int) -> Draw:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return lambda random: quoted(str(random.choice([low, high, 0, random.randint(low, high), random.randint(0, 99)])))


def numeric(digits: int, scale: int) -> Draw:
    def draw(random: Random) -> str:
        size = random.randrange(1, digits + 1)
        unscaled = random.randrange(10**size)
        text = f"{unscaled:0{scale + 1}d}"
        return quoted(random.choice(["", "-"]) + (f"{text[:-scale]}.{text[-scale:]}" if scale else text))

    return draw


def any_numeric(random: Random) -> str:
    digits = "".join(random.choices("0123456789", k=random.randrange(1, 45)))
    at = random.randrange(len(digits) + 1)
    ends = ["0", "0.000", "1e40", "-1e-30", "1.0", "1.00"]
    return quoted(random.choice([f"{random.choice(['', '-'])}{digits[:at] or '0'}.{digits[at:] or '0'}", *ends]))


def floating(*, single: bool) -> Draw:
    exponents = (-37, 38) if single else (-300, 300)

    def draw(random: Random) -> str:
        any_size = f"{random.uniform(-10, 10)!r}e{random.randrange(*exponents)}"
        return quoted(random.choice([any_size, any_size, "0", "-0", "1.1", "16777217", "1e-7", "1e15", "1e16", "1e23"]))

    return draw


NAMES = "aZ 09~\\'\"\n\t\x1fäßéŁΩжاあ漢€😀\u2028"


def characters(random: Random, most: int = 12) -> str:
    return "".join(random.choices(NAMES, k=random.randrange(most))) + random.choice(["", "", " "])


def text(most: int) -> Draw:
    return lambda random: quoted(characters(random, most))


def octets(random: Random) -> str:
    return quoted("\\x" + random.randbytes(random.choice([0, 1, 2, 3, random.randrange(60)])).hex())


def day(random: Random) -> str:
    year = random.choice([random.randrange(1, 10000), 1970, 1582, random.randrange(1900, 2100)])
    return f"{year:04}-{random.randrange(1, 13):02}-{random.randrange(1, 29):02}"


def clock(random: Random, digits: int = 6) -> str:
    fraction = random.choice([0, 0, 5 * 10**5, 999_999, random.randrange(10**6)]) // 10 ** (6 - digits)
    shown = f".{fraction:0{digits}}" if fraction else ""
    return f"{random.randrange(24):02}:{random.randrange(60):02}:{random.randrange(60):02}{shown}"


def date(random: Random) -> str:
    ends = ["0001-01-01", "9999-12-31", "2024-02-29", "1582-10-10"]
    return quoted(random.choice([day(random), day(random), *ends]))


def time(digits: int) -> Draw:
    return lambda random: quoted(random.choice([clock(random, digits)] * 4 + ["24:00:00", "00:00:00"]))


def zone(random: Random) -> str:
    return random.choice(["+00", "+02", "-08", "+05:30", "-03:30", "+13"])


def timetz(random: Random) -> str:
    return quoted(clock(random) + zone(random))


def timestamp(digits: int) -> Draw:
    return lambda random: quoted(f"{day(random)} {clock(random, digits)}")


def timestamptz(random: Random) -> str:
    return quoted(f"{day(random)} {clock(random)}{zone(random)}")


def interval(random: Random) -> str:
    parts = [f"{random.randrange(-40, 40)} {unit}" for unit in ("years", "months", "days", "hours", "minutes")]
    parts.append(f"{random.choice([0, 1, 6.5, -0.000001, 59.999999, random.randrange(60)]):.6f} seconds")
    return quoted(" ".join(random.sample(parts, random.randrange(1, len(parts) + 1))))


def uuid_(random: Random) -> str:
    return quoted(str(uuid.UUID(int=random.getrandbits(128))))


def address(random: Random) -> str:
    four = ".".join(str(random.randrange(256)) for _ in range(4))
    six = ":".join(f"{random.choice([0, 0, 1, random.getrandbits(16)]):x}" for _ in range(8))
    return random.choice([four, six])


def inet(random: Random) -> str:
    of = address(random)
    return quoted(of + random.choice(["", f"/{random.randrange(33)}"]))


def cidr(random: Random) -> str:
    return f"network(set_masklen({inet(random)}::inet, {random.randrange(33)}))"


def mac(random: Random) -> str:
    return quoted(":".join(f"{random.randrange(256):02x}" for _ in range(6)))


def bits(low: int, high: int) -> Draw:
    return lambda random: "B" + quoted("".join(random.choices("01", k=random.randint(low, high))))


def document(random: Random, depth: int = 2) -> object:
    leaves = [None, True, random.randrange(1 << 60), random.uniform(-9, 9), characters(random), "", 0]
    if not depth or random.random() < 0.4:
        return random.choice(leaves)
    if random.random() < 0.5:
        return [document(random, depth - 1) for _ in range(random.randrange(4))]
    return {characters(random, 5): document(random, depth - 1) for _ in range(random.randrange(4))}


def json_(random: Random) -> str:
    of = json.dumps(document(random), ensure_ascii=random.random() < 0.5).replace("\\u0000", "")
    return quoted(random.choice([of, of, '{"a": 1.0,  "a":"ü"}', " [1.50 ] ", "1e2", "null"]))


def hstore(random: Random) -> str:
    pairs = [f"{_double_quoted(characters(random))}=>{_value(random)}" for _ in range(random.randrange(4))]
    return quoted(",".join(pairs))


def _value(random: Random) -> str:
    return random.choice(["NULL", _double_quoted(characters(random))])


def _double_quoted(of: str) -> str:
    return '"' + of.replace("\\", "\\\\").replace('"', '\\"') + '"'


def array(draw: Draw, type_: str) -> Draw:
    """Returns a function that draws an array of one dimension, maybe with nulls."""

    def draw_array(random: Random) -> str:
        items = ["NULL" if random.random() < 0.2 else draw(random) for _ in range(random.randrange(5))]
        return f"ARRAY[{','.join(items)}]::{type_}[]"

    return draw_array


def bounded(draw: Callable[[Random], str], type_: str) -> Draw:
    """Returns a function that draws a range. Some of the ranges are empty, and some lack a bound."""

    def draw_range(random: Random) -> str:
        ends = f"least(a, b), greatest(a, b), '{random.choice(['[)', '(]', '[]', '()'])}'"
        lower, upper = (f"{draw(random)}" if random.random() < 0.8 else "NULL" for _ in range(2))
        subtype = RANGES[type_]
        return f"(SELECT {type_}({ends}) FROM (VALUES ({lower}::{subtype}, {upper}::{subtype})) AS r (a, b))"

    return draw_range


RANGES = {
    "int4range": "int4",
    "int8range": "int8",
    "numrange": "numeric",
    "daterange": "date",
    "tsrange": "timestamp",
    "tstzrange": "timestamptz",
}


def point(random: Random) -> str:
    return quoted(f"({random.uniform(-9, 9)!r},{random.randrange(9)})")


def label(random: Random) -> str:
    return quoted(".".join("".join(random.choices("abcXYZ019_", k=3)) for _ in range(random.randrange(1, 4))))


def tsvector(random: Random) -> str:
    words = [f"{random.choice(['fat', 'cat', 'sat', 'ü'])}:{random.randrange(1, 99)}" for _ in range(3)]
    return quoted(" ".join(words[: random.randrange(4)]))


def small_integer(random: Random) -> str:
    return str(random.randrange(-1000, 1000))


GAP = {"days of 1582": listed.in_the_gap}


def _kinds() -> Sequence[Kind]:
    plain = {
        "boolean": one_of("t", "f"),
        "smallint": integer(16),
        "integer": integer(32),
        "bigint": integer(64),
        "oid": one_of("0", "4294967295", "17"),
        "real": floating(single=True),
        "double precision": floating(single=False),
        "numeric(12,2)": numeric(12, 2),
        "numeric(38,10)": numeric(38, 10),
        "numeric(5)": numeric(5, 0),
        "text": text(40),
        "varchar(20)": text(12),
        "char(12)": text(8),
        "citext": text(12),
        "bytea": octets,
        "time": time(6),
        "time(3)": time(3),
        "timestamp": timestamp(6),
        "timestamp(0)": timestamp(0),
        "timestamp(3)": timestamp(3),
        "timestamptz": timestamptz,
        "timestamptz(3)": timestamptz,
        "interval": interval,
        "uuid": uuid_,
        "inet": inet,
        "cidr": cidr,
        "macaddr": mac,
        "bit(10)": bits(10, 10),
        "json": json_,
        "jsonb": json_,
        "mood": one_of("ok", "x, y", "", "NULL", "ü\"\\'"),
        "price": numeric(10, 2),
        "point": point,
        "ltree": label,
        "tsvector": tsvector,
        "int[]": array(small_integer, "int"),
        "bigint[]": array(integer(64), "bigint"),
        "text[]": array(text(12), "text"),
        "boolean[]": array(one_of("t", "f"), "boolean"),
        "numeric(6,2)[]": array(numeric(6, 2), "numeric(6,2)"),
        "uuid[]": array(uuid_, "uuid"),
        "double precision[]": array(floating(single=False), "float8"),
    }
    kinds = [Kind(definition=definition, draw=draw) for definition, draw in plain.items()]
    bounds = {
        "int4range": small_integer,
        "int8range": small_integer,
        "numrange": numeric(6, 2),
        "daterange": date,
        "tsrange": timestamp(6),
        "tstzrange": timestamptz,
    }
    ranges = [
        Kind(definition=type_, draw=bounded(draw, type_), listed={"range as text": listed.range_text})
        for type_, draw in bounds.items()
    ]
    return [
        *kinds,
        *ranges,
        Kind(definition="numeric", draw=any_numeric, listed={"zeros at the end of a numeric": listed.without_scale}),
        Kind(definition="date", draw=date, listed=GAP),
        Kind(definition="date[]", draw=array(date, "date"), listed=GAP),
        Kind(definition="timestamptz[]", draw=array(timestamptz, "timestamptz"), listed=GAP),
        Kind(definition="bit varying", draw=bits(0, 20), listed={"zeros of a bit string": listed.leading_zeros}),
        Kind(definition="bit varying(12)", draw=bits(0, 12), listed={"zeros of a bit string": listed.padded_to(12)}),
        Kind(definition="hstore", draw=hstore, listed={"order of a map": listed.same_members}),
        Kind(definition="money", draw=numeric(12, 2), listed={"money as a number": listed.money}),
        Kind(definition="bit(1)", draw=bits(1, 1), listed={"one bit as a boolean": listed.one_bit}),
        Kind(definition="timetz", draw=timetz, listed={"time with zone in UTC": listed.in_utc}),
    ]


KINDS = _kinds()

KEYS: Sequence[tuple[str, Callable[[int], str]]] = (
    ("int", str),
    ("bigint", lambda number: str(number << 32)),
    ("text", lambda number: quoted(f'k"{number} \\ü')),
    ("uuid", lambda number: quoted(str(uuid.UUID(int=number * 0x1234567890ABCDEF1234567)))),
    ("date", lambda number: f"(date '1970-01-01' + {number})"),
    ("numeric(12,2)", lambda number: f"{number}.50"),
)
"""Types of key columns. Each has a function that returns the SQL literal of key number N."""
