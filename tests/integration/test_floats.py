"""Tests that the service prints floats exactly as PostgreSQL prints them."""

import math
import struct

import numpy as np
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.servers.postgres import PostgresServer
from changelog.envelope.codec import floats

POWERS = [2.0**power for power in range(-1074, 1024)] + [float(f"1e{power}") for power in range(-323, 309)]
"""Powers of 2 and of 10. At a power of 2, the distance between neighbouring floats changes. Some powers of 10, such as
1e23, lie exactly in the middle between two floats. For one of these two floats, many programs print the power itself.
PostgreSQL prints more digits for both.
"""

DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)


def check(server: PostgresServer, values: list[float], *, single: bool) -> None:
    name = "float4" if single else "float8"
    with psycopg.connect(server.dsn()) as connection:
        rows = connection.execute(
            f"SELECT (v::{name})::text FROM unnest(%s::float8[]) WITH ORDINALITY AS t (v, n) ORDER BY n", [values]
        ).fetchall()
    assert [floats.token(value, single=single).decode() for value in values] == [text for (text,) in rows]


def test_floats_at_powers_are_printed_as_by_the_server(server: PostgresServer) -> None:
    check(server, POWERS + [math.nextafter(power, 0) for power in POWERS], single=False)
    singles = [float(np.float32(power)) for power in POWERS if 1e-45 < power < 3e38]
    check(server, singles + [float(np.nextafter(np.float32(single), np.float32(0))) for single in singles], single=True)


@settings(max_examples=20, deadline=None)
@given(st.lists(DOUBLES, min_size=50, max_size=50), st.lists(SINGLES, min_size=50, max_size=50))
def test_random_floats_are_printed_as_by_the_server(
    server: PostgresServer, doubles: list[float], singles: list[float]
) -> None:
    check(server, doubles, single=False)
    check(server, singles, single=True)


@pytest.mark.parametrize("single", [True, False])
def test_a_float_that_json_cannot_express_is_a_string(*, single: bool) -> None:
    nan = struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\xff")[0]
    tokens = [floats.token(value, single=single) for value in (nan, math.inf, -math.inf)]
    assert tokens == [b'"NaN"', b'"Infinity"', b'"-Infinity"']
