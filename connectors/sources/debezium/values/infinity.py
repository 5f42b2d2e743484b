"""Lists the values that Debezium's connector for PostgreSQL publishes for infinite dates and timestamps.

Java has no infinite date. So the driver and the connector replace an infinite date with one that is far away. The
values below are those that a real Debezium wrote. Three finite moments have the same values, and so are published as
infinite, too: one in the year 294247, and the first and the last moment that 64 bits can count in nanoseconds (in 1677
and 2262).
"""

from collections.abc import Mapping
from typing import Any, Final

_LATE, _EARLY = b"infinity", b"-infinity"
_DAYS: Final = {-622_191_234: _LATE, -625_821_272: _EARLY}
_MS: Final = {9_223_372_036_825_200: _LATE, -9_223_372_036_832_400: _EARLY}
_US: Final = {9_223_372_036_825_200_000: _LATE, -9_223_372_036_832_400_000: _EARLY}
_NS: Final = {(1 << 63) - 1: _LATE, -(1 << 63): _EARLY}

INFINITE: Final[Mapping[str, Mapping[Any, bytes]]] = {
    "io.debezium.time.Date": _DAYS,
    "io.debezium.time.Timestamp": _MS,
    "io.debezium.time.MicroTimestamp": _US,
    "io.debezium.time.NanoTimestamp": _NS,
    "io.debezium.time.IsoDate": {"+292278994-08-16Z": _LATE, "+292269055-12-02Z": _EARLY},
    "io.debezium.time.IsoTimestamp": {"+294247-01-10T04:00:25.2Z": _LATE, "-290308-12-21T19:59:27.6Z": _EARLY},
    "org.apache.kafka.connect.data.Date": _DAYS,
    "org.apache.kafka.connect.data.Timestamp": _MS,
}
"""For each semantic type, the values that are infinite."""
