"""Makes the drift reports of four nights: no drift, drift, severe drift, and a changelog that did not catch up."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec

from changelog.spark_jobs.drift.report import Policy, finish, repaired
from tests.unit.drift.reports import JSON, PROVENANCE, entity, report, skipped

ORDER_ROWS, GUEST_ROWS, EVENT_ROWS, LINE_ROWS = 1_512_340, 204_911, 8_730_022, 4_018_557
DRIFT_BY_NIGHT = {4: 3, 5: 3, 11: 41, 12: 41, 19: 2}
"""How many orders drifted in each earlier night, by the number of the night. Nights without an entry had no drift."""

HARD = "<script>alert(\"x\")</script> & 'quotes'"
"""A text that must never be interpreted as markup or as a script."""


def others(run: int) -> JSON:
    """Returns the parts of the report on night `run` that are about entities which never drift."""
    grown = run * 1_803
    return {
        "guest": _rows(GUEST_ROWS + run * 41, table="public.guests"),
        "event": _rows(EVENT_ROWS + grown * 9, table="public.events"),
        "order-line": _rows(LINE_ROWS + grown, table="public.order_lines", key=["order_id", "line"]),
    }


def _rows(number: int, **fields: Any) -> JSON:
    return entity(sourceRows=number, changelogRows=number, **fields)


def orders(run: int, **fields: Any) -> JSON:
    rows = ORDER_ROWS + run * 620
    missing, extra = fields.get("missing", 0), fields.get("extra", 0)
    return entity(**{"sourceRows": rows, "changelogRows": rows - missing + extra, **fields})


def earlier(nights: int) -> list[JSON]:
    """Returns the reports of the earlier nights, some with a little drift."""
    runs: list[JSON] = []
    for run in range(1, nights + 1):
        night_report = report(run, {"order": orders(run, changed=DRIFT_BY_NIGHT.get(run, 0)), **others(run)})
        runs.append(finish(night_report, {}, runs))
    return runs


def sample(key: str, kind: str, columns: JSON, **changed: Any) -> JSON:
    provenance = copy.deepcopy(PROVENANCE) | changed
    return {"key": key, "kind": kind, "columns": columns, "provenance": None if kind == "missing" else provenance}


def both(source: str, changelog: str) -> JSON:
    """Returns a column's value in the source and its value in the changelog. The arguments are their JSON texts."""
    return {"source": msgspec.Raw(source.encode()), "changelog": msgspec.Raw(changelog.encode())}


SAMPLES = [
    sample("184467", "changed", {"amount": both('"411.00"', '"548.00"'), "note": both("null", '""')}),
    sample("184502", "changed", {"note": both('"late arrival"', '"late arrival  "'), "weight": both("-0", "0")}),
    sample(
        "184519",
        "changed",
        {
            "guest_name": both('"Zoe\u0301"', '"Zo\u00e9"'),
            "fee": both('"1234567890.12345678901234567890"', '"1234567890.12345678901234567891"'),
            "labels": both('["vip","🛎️","משה"]', '["vip"]'),
        },
        serviceName=HARD,
    ),
    sample(
        "184990", "missing", {"status": {"source": "NEW"}, "amount": {"source": "120.00"}, "note": {"source": None}}
    ),
    sample(
        "77", "extra", {"status": {"changelog": "PAID"}, "amount": {"changelog": "9.90"}, "note": {"changelog": HARD}}
    ),
    sample(f'k"{HARD}' + "x" * 10_000, "changed", {"note": both('"\u202eabc"', '"abc"')}),
]

DRIFT: JSON = {
    "missing": 1,
    "extra": 1,
    "changed": 4,
    "columns": {"note": 3, "amount": 1, "fee": 1, "guest_name": 1, "labels": 1, "weight": 1},
    "unknown": {"terms": 218},
    "writers": [
        {"serviceName": "order-api", "apiVersion": "v2", "drifted": 4},
        {"serviceName": HARD, "apiVersion": "v2", "drifted": 1},
    ],
    "incidents": {
        "count": 1,
        "shape": "one",
        "firstPosition": "00000001/0000000001781838/00000006",
        "lastPosition": "00000001/00000000017A2210/00000002",
        "firstAt": "2026-11-20T22:41:07.886044Z",
        "lastAt": "2026-11-20T22:44:51.120310Z",
    },
    "samples": SAMPLES,
}


def clean() -> JSON:
    return finish(report(21, {"order": orders(21), **others(21)}), {}, earlier(20))


def drift() -> JSON:
    """Returns the report of a night with drift. Its drifted keys were republished at once.

    The night also verified that 41 keys of earlier nights are repaired.
    """
    night_report = finish(report(21, {"order": orders(21, **DRIFT), **others(21)}), {}, earlier(20))
    night_report = repaired(night_report, "order", ["3f2a-1"], "2026-11-21T03:10:13Z")
    night_report["entities"]["order"]["history"] |= {"verified": 41}
    return night_report


def severe() -> JSON:
    """Returns the report of a night in which a column of one table drifted, and another table's schema changed."""
    rows = ORDER_ROWS + 13_020
    wide = {
        "changed": 391_208,
        "missing": 12,
        "columns": {"amount": 391_208, **{f"column_{number:02}": 40 - number for number in range(14)}},
        "incidents": {**DRIFT["incidents"], "count": 1_204, "shape": "many"},
        "writers": [*DRIFT["writers"][:1], {"serviceName": "import", "apiVersion": "v1", "drifted": 380_004}],
        "samples": SAMPLES[:2],
    }
    entities = {
        "order": entity(sourceRows=rows, changelogRows=rows - 12, **wide),
        **others(21),
        "invoice": skipped(table="billing.invoices", why="this user may not read billing.invoices"),
    }
    entities["guest"] |= {
        "verdict": "schema changed",
        "schemaChanged": {"tier": "added with a default at 00000001/0000000001781838/00000006"},
    }
    return finish(report(21, entities), {"order": Policy()}, earlier(20))


def not_caught_up() -> JSON:
    night_report = report(
        21,
        {
            name: skipped(table=entity_report["table"])
            for name, entity_report in {"order": orders(21), **others(21)}.items()
        },
    )
    night_report |= {
        "verdict": "not caught up",
        "why": "published up to 0/16B2000, the fence is 0/16B3748: 5.9 kB behind after 300 s; is the service running?",
    }
    night_report["fence"] |= {"caughtUpAt": None, "waitedSeconds": 300.0}
    return finish(night_report, {}, earlier(20))


NIGHTS: dict[str, Callable[[], JSON]] = {
    "clean": clean,
    "drift": drift,
    "severe": severe,
    "not-caught-up": not_caught_up,
}
