"""Tests the HTTP API of views: single rows, ranges, how new the rows are, errors, and the API's own description."""

import gc
import json
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, urlencode

import pytest

from changelog.connectors.views.http import app, paging
from changelog.connectors.views.serving import serving_views
from changelog.connectors.web import serving
from changelog.envelope.key import key_text
from changelog.envelope.model import Op
from tests.patience import PATIENCE_S, until
from tests.unit.records import record
from tests.unit.views.running import NEW, PAID, PART, SEATS, Api, Got, commit, records, running, settings

END = "00000001/000000000000000B/00000002"


def keys(answer: Got) -> list[str]:
    assert answer.status == 200, answer.body
    return [row["key"] for row in answer.json["rows"]]


def test_a_row_is_as_the_changelog_has_it(api: Api) -> None:
    answer = api.get("/order/42")
    assert answer.status == 200
    assert f'"current":{PAID}'.encode() in answer.body
    assert answer.headers["x-position"] == END
    assert float(answer.headers["x-staleness"]) >= 0
    assert answer.headers.get_all("cache-control") == ["private, no-cache"]
    assert api.get("/order").headers.get_all("cache-control") == ["no-store"]
    rest = answer.json
    del rest["current"]
    assert rest == {
        "key": "42",
        "position": "00000001/0000000000000003/00000002",
        "committedAt": "2026-11-21T03:10:05.886044Z",
        "unavailable": [],
    }


def test_an_unavailable_value_is_shown_as_such(api: Api) -> None:
    row = api.get("/order/43").json
    assert (row["current"], row["unavailable"]) == (json.loads(PART), ["note"])


@pytest.mark.parametrize("key", ["44", "no%20such", "%00truncate", ""])
def test_a_key_without_a_row_is_not_found(api: Api, key: str) -> None:
    answer = api.get(f"/order/{key}")
    assert answer.status == 404
    assert answer.json == {"status": 404, "error": "order has no row with this key now", "hint": None}
    assert answer.headers["x-position"] == END


@pytest.mark.parametrize("seat", SEATS)
def test_keys_of_several_columns_are_parts_of_the_address(api: Api, seat: list[str]) -> None:
    row = api.get("/seat/" + "/".join(quote(value, safe="") for value in seat)).json
    assert (row["key"], row["current"]) == (key_text(seat), {"seat": seat})


def test_a_client_that_already_has_the_state_gets_no_content(api: Api) -> None:
    tag = api.get("/order/42").headers["etag"]
    answer = api.get("/order/42", if_none_match=f'"other", {tag}')
    assert (answer.status, answer.body, answer.headers["x-position"]) == (304, b"", END)
    assert api.get("/order/41", if_none_match=tag).status == 200


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["41", "42", "43"]),
        ("?prefix=42", ["42"]),
        ("?prefix=5", []),
        ("?from=42", ["42", "43"]),
        ("?from=42&to=43", ["42"]),
        ("?to=42", ["41"]),
        ("?after=41&to=43", ["42"]),
        ("?prefix=4&from=1&limit=2", ["41", "42"]),
    ],
)
def test_a_range_returns_the_rows_with_its_keys(api: Api, query: str, expected: list[str]) -> None:
    assert keys(api.get(f"/order{query}")) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"prefix": "A"}, SEATS[:3]),
        ({"prefix": ["A", "1"]}, SEATS[:3]),
        ({"prefix": ["A", "1", ""]}, SEATS[:2]),
        ({"from": ["A", "10"], "to": ["B", "2"]}, SEATS[2:4]),
        ({"from": SEATS[1], "to": SEATS[3]}, SEATS[1:3]),
    ],
)
def test_ranges_limit_keys_of_several_columns(api: Api, query: dict[str, object], expected: list[list[str]]) -> None:
    assert keys(api.get(f"/seat?{urlencode(query, doseq=True)}")) == [key_text(seat) for seat in expected]


def test_each_page_leads_to_the_next_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = api.rows("/seat")
    assert [row["current"]["seat"] for row in everything] == SEATS
    assert api.rows("/seat?limit=1") == api.rows("/seat?limit=2&max_lag=9999m") == everything
    monkeypatch.setattr(paging, "PAGE_BYTES", 1)
    assert api.rows("/seat") == everything
    monkeypatch.setattr(paging, "PAGE_BYTES", 1 << 20)
    monkeypatch.setattr(paging, "KEYS_MAX", 1)
    assert [row["key"] for row in api.rows("/order")] == ["41", "42", "43"]


@pytest.mark.parametrize("position", [END, "00000001/0000000000000001/00000000", "0/B", "0/b"])
def test_a_position_that_is_reached_is_not_waited_for(api: Api, position: str) -> None:
    assert api.get(f"/order/42?min_position={position}").status == 200
    assert keys(api.get(f"/order?limit=1&min_position={position}")) == ["41"]


@pytest.mark.parametrize(
    ("query", "error"),
    [
        (
            "min_position=00000001/000000000000000C/00000000",
            f"has not reached 00000001/000000000000000C/00000000: it is complete up to {END}",
        ),
        ("min_position=0/C", "has not reached this place in the database's log"),
        ("max_lag=0", "s ago, which is more than the max_lag of 0 s"),
    ],
)
def test_a_state_that_is_not_new_enough_is_refused(api: Api, query: str, error: str) -> None:
    answer = api.get(f"/order/42?{query}")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert error in answer.json["error"]
    assert "the request waited 0.05 s" in answer.json["hint"]
    assert answer.headers["x-position"] == END


def test_a_row_appears_once_its_position_is_reached(folder: Path, tmp_path: Path) -> None:
    commit(tmp_path / "log", records())
    with running(settings(tmp_path), wait_s=60) as api:
        assert api.get("/order/45").status == 404
        commit(tmp_path / "log", [record(Op.CREATE, '{"id":45}', commit=20, key="45")])
        answer = api.get("/order/45?min_position=00000001/0000000000000014/00000002")
        assert (answer.status, answer.json["current"]) == (200, {"id": 45})


def test_a_request_that_waits_ends_when_the_server_ends(folder: Path) -> None:
    with serving_views(settings(folder), wait_s=PATIENCE_S) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        with closing(socket.create_connection(server.socket.getsockname(), PATIENCE_S)) as connection:
            connection.sendall(b"GET /order/42?min_position=1/0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until(lambda: bool(server.server.server_state.tasks), "the request does not arrive")
            server.server.should_exit = True
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        thread.join(PATIENCE_S)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"error":"the server is stopping","hint":"send the request again"' in answer


def test_a_request_that_the_end_of_the_server_cuts_off_is_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, ends = threading.Event(), threading.Event()

    def read_slowly(*_: object, **__: object) -> NoReturn:
        reads.set()
        ends.wait(PATIENCE_S)
        raise AssertionError

    monkeypatch.setattr(app, "row_answer", read_slowly)
    monkeypatch.setattr(serving, "CLOSE_S", 0)
    with serving_views(settings(folder)) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        with closing(socket.create_connection(server.socket.getsockname(), PATIENCE_S)) as connection:
            connection.sendall(b"GET /order/42 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert reads.wait(PATIENCE_S)
            server.server.should_exit = True
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        ends.set()
        thread.join(PATIENCE_S)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 2\r\n" in answer
    assert b'"error":"The server is stopping; try again in a moment."' in answer


@pytest.mark.parametrize(
    ("target", "status", "error", "hint"),
    [
        ("/no_such/1", 404, "there is no such view", "there are: order, seat"),
        ("/no_such", 404, "there is no such view", "there are: order, seat"),
        ("/order/42/1", 400, "the key has 1 column, not 2", "give the value of id"),
        ("/seat/A/1", 400, "the key has 3 columns, not 2", "give the values of hall, row, seat, in this order"),
        ("/seat?prefix=A&prefix=1&prefix=1&prefix=1", 400, "the key has 3 columns, not 4", None),
        ("/order/%FF", 400, "the key is not UTF-8", None),
        ("/order/42?at=1", 400, "the parameter at is not known", "known here: min_position, max_lag, stale"),
        ("/order?limit=0", 400, "limit is not a number of rows", "give 1 to 1000"),
        ("/order?limit=1&limit=2", 400, "the parameter limit is given 2 times", "give it once"),
        ("/order/42?min_position=7", 400, "min_position is not a position", None),
        ("/order/42?stale=yes", 400, "the value of stale is not 'allowed'", "write ?stale=allowed, or leave it out"),
        ("/order/42?max_lag=2h", 400, "max_lag is not a time span", "give seconds, as in 2s, 500ms or 1m"),
    ],
)
def test_a_bad_request_says_what_to_do(api: Api, target: str, status: int, error: str, hint: str | None) -> None:
    answer = api.get(target)
    assert (answer.status, answer.json["status"], answer.json["error"]) == (status, status, error)
    assert hint is None or answer.json["hint"] == hint


def test_declared_views_show_their_rows_and_columns_only(folder: Path, tmp_path: Path) -> None:
    commit(tmp_path / "log", records())
    views = """
    [views.paid]
    entity = "order"
    columns = ["amount", "status", "note"]
    where = "status = 'PAID' AND amount > 1"
    serve = { max_lag_seconds = 86400 }
    [views.documents]
    entity = "order"
    """
    with running(settings(tmp_path, views)) as api:
        assert api.get("/order/41").json["hint"] == "there are: paid"
        assert api.get("/paid/41").status == 404
        assert api.get("/paid/43").status == 404
        row = api.get("/paid/42")
        assert b'"current":{"amount":"12345678901234567890.10","status":"PAID","note":1E400}' in row.body
        assert keys(api.get("/paid")) == ["42"]
        tag = row.headers["etag"]
    with running(settings(tmp_path, views.replace('"note"]', '"id"]'))) as api:
        assert api.get("/paid/42", if_none_match=tag).status == 200


def test_the_api_describes_itself(api: Api) -> None:
    document = api.get("/openapi.json").json
    assert document["openapi"] == "3.1.0"
    assert document["paths"].keys() == {"/order", "/order/{id}", "/seat", "/seat/{hall}/{row}/{seat}"}
    texts = json.dumps(document)
    names = {name.partition('"')[0] for name in texts.split('"#/components/schemas/')[1:]}
    assert names == document["components"]["schemas"].keys()
    page = api.get("/")
    assert b'<a href="/seat"><code>/seat</code></a></td><td><code>/seat/HALL/ROW/SEAT</code>' in page.body
    assert b"<script" not in page.body
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert api.get("/api.css").headers["content-type"].startswith("text/css")


def test_probes_and_metrics_are_answered(api: Api) -> None:
    assert api.get("/health").json == api.get("/ready").json == {"ok": True}
    api.get("/order/41")
    api.get("/order/0")
    text = api.get("/metrics").body.decode()
    assert 'changelog_view_requests_total{status="404",view="order"}' in text
    assert 'changelog_view_request_seconds_bucket{le="10.0",view="order"}' in text
    assert "changelog_view_staleness_seconds" in text


def test_names_that_clients_make_up_are_not_counted(api: Api) -> None:
    assert api.get("/order/41").status == 200
    assert api.get("/made_up/41").status == 404
    metrics = api.get("/metrics").body
    assert b'changelog_view_requests_total{status="200",view="order"}' in metrics
    assert b"made_up" not in metrics


def test_garbage_collections_skip_what_exists_before_the_first_request(folder: Path) -> None:
    gc.unfreeze()
    with serving_views(settings(folder)):
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0


def test_an_empty_changelog_is_not_ready(tmp_path: Path) -> None:
    with running(settings(tmp_path, '[views.paid]\nentity = "order"\nserve = {}')) as api:
        assert api.get("/health").status == 200
        assert api.get("/ready").status == 503
        answer = api.get("/paid/1")
        assert (answer.status, answer.json["hint"]) == (503, "start the service: `changelog run`")
        commit(tmp_path / "log", records())
        assert api.get("/paid/41").json["current"] == json.loads(NEW)
        assert api.get("/ready").status == 200


def test_rows_can_be_read_only_with_the_token(folder: Path) -> None:
    with running(settings(folder, serve='token = "a token of a person"')) as api:
        for target in ("/", "/order/42", "/order", "/openapi.json", "/metrics"):
            answer = api.get(target)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.json["hint"] == "send it in the header: Authorization: Bearer TOKEN"
            assert api.get(target, authorization="Bearer a token of a person").status == 200
        assert api.get("/health").status == api.get("/ready").status == 200


def test_a_damaged_changelog_is_an_error_of_the_server(tmp_path: Path) -> None:
    commit(tmp_path / "log", records())
    with running(settings(tmp_path)) as api:
        (tmp_path / "log" / "log" / f"{2:020d}.parquet").write_bytes(b"PAR1")
        answer = api.get("/order")
        assert answer.status == 500
        assert "is damaged" in answer.json["error"]
        assert api.get("/ready").status == 503
