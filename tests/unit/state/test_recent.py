"""Tests the cache of the rows that were written to the store last. It must have these rows, and no outdated ones."""

from random import Random

from changelog.connectors.state.recent import ABSENT, RecentRows


def test_the_cache_has_the_last_rows_and_no_outdated_ones() -> None:
    random = Random(1)
    recent, current_rows = RecentRows(nbytes_max=20_000), dict[bytes, bytes | None]()
    hits = 0
    for _ in range(300):
        rows = {
            b"%b\0%d" % (random.choice([b"a", b"b"]), random.randrange(200)): random.choice([None, b"%d" % number])
            for number in range(random.randrange(20))
        }
        recent.add(rows)
        current_rows |= rows
        if random.random() < 0.02:
            recent.forget("a")
            current_rows = {key: row for key, row in current_rows.items() if not key.startswith(b"a\0")}
        for row, cached in zip(current_rows.values(), recent.get([*current_rows]), strict=True):
            assert cached is ABSENT or cached == row
            hits += cached is not ABSENT
        assert recent.get([b"a\0unknown"]) == [ABSENT]
        last = {key: row for key, row in rows.items() if key in current_rows}
        if recent._young:
            assert recent.get([*last]) == [*last.values()]
        assert len(recent._young) + len(recent._old) < 20_000 / 150 + 40
    assert hits > 1000
