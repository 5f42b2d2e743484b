"""Tests the pages of the console, as HTML and as JSON: rows, searches, columns, drift, and errors."""

import html
import json
import re
import shutil
import socket
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from changelog.connectors.console.addresses import row_address
from changelog.connectors.console.changes import anchor
from changelog.connectors.console.rendering import fragment
from changelog.connectors.sinks.files.layout import log_file
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.model import Op, position_of
from changelog.envelope.position import Position
from tests.unit.console.client import Client
from tests.unit.console.story import HARD_KEY, LONG, MARKUP, add, settings, story, write
from tests.unit.records import record

REPORT = Path(__file__).parents[1] / "drift" / "format-1.json"
PAGE_BYTES_MAX = 200_000
"""A page stays below this size, whatever the values of a row are."""


def test_the_first_page_says_what_the_console_is_for_and_lists_the_entities(client: Client) -> None:
    page = client.get("/")
    assert page.status == 200
    assert "What happened to a row, and who did it" in page.text
    assert '<form class="find" role="search" action="/search">' in page.text
    assert page.text.count('role="search"') == client.get("/e/order/42").text.count('role="search"') == 1
    assert page.headers["cache-control"] == "no-store"
    data = client.json("/")
    totals = {item["name"]: item["total"] for item in data["entities"]}
    assert totals == {"order": 10, "guest": 4, "seat": 2}
    assert data["newest"][0]["address"] == "/e/order/46"
    assert data["drift"]["verdict"] is None


def test_a_database_that_is_stopped_is_no_problem(client: Client) -> None:
    page = client.get("/")
    assert page.status == 200
    text = re.sub("<[^>]*>", "", page.text)
    shown = "The service is stopped, and the database cannot be reached: changes up to 2026-11-21 03:10:17.886Z"
    assert text.index("Newest changes") < text.index(shown) < text.index("Details") < text.index("cannot connect")
    assert "Traceback" not in page.text
    (problem,) = client.json("/")["status"]["problems"]
    assert "cannot connect to PostgreSQL" in problem


SLOT = {"kind": "slot", "status": "reserved", "retained_bytes": 2048}
WELL = {
    "service": {"phase": "streaming", "running": True, "waiting": None},
    "problems": [],
    "position": "1/2/3",
    "lag": {"bytes": 0, "seconds": 0},
    "slot": SLOT,
    "windows": {},
    "repairs": {"open": {}, "paused": []},
}


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({}, "The service is running. Lag 0 s, 0 B. Slot reserved, keeps 2 KiB."),
        ({"slot": None}, "The service is running. Lag 0 s, 0 B."),
        ({"lag": {"bytes": None, "seconds": None}}, "The service is running. The lag is not known. Slot reserved"),
        ({"problems": ["refused"]}, "The service is running, but the database cannot be reached."),
        ({"service": {"phase": None, "running": False, "waiting": None}}, "The service is stopped. Lag 0 s"),
        (
            {"service": {"phase": "waiting", "running": True, "waiting": "its standby is late"}},
            "The database sends nothing: its standby is late",
        ),
    ],
)
def test_the_state_of_the_service_is_a_sentence(members: dict[str, object], sentence: str) -> None:
    drift = {"problem": None, "verdict": "clean", "tone": "good", "finished_at": "2026-11-21T03:10:12Z"}
    data: dict[str, object] = {"status": {**WELL, **members}, "status_problem": None, "newest": [], "drift": drift}
    text = " ".join(re.sub("<[^>]*>", "", fragment("state.html", data)).split())
    assert sentence in text
    assert "Drift report: no differences, 2026-11-21 03:10Z" in text


def test_the_newest_changes_read_as_sentences(client: Client) -> None:
    lines = [" ".join(re.sub("<[^>]*>", "", line).split()) for line in client.get("/").text.split('<li class="line">')]
    assert any(line.startswith("moved order 45 from order 44 by order-api version v2 request req-9") for line in lines)
    assert any(line.startswith("moved order 44 to order 45 by order-api") for line in lines)


def test_a_database_that_does_not_answer_does_not_delay_the_page(folder: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        client = Client(settings(folder, dsn=f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=app"))
        page = client.get("/")
    assert page.status == 200
    assert "The database has not answered yet." in page.text
    assert "order 46" in page.text.replace("<bdi>", "")


def test_the_page_of_a_row_has_its_state_its_changes_and_their_writers(client: Client) -> None:
    data = client.json("/e/order/42")
    assert data["total"] == 4
    state = {
        item["path"]: (item["value"]["json"], item["service"], item["before"]["json"]) for item in data["attributes"]
    }
    assert state == {
        "id": (42, "web-booking", None),
        "status": ("PAID", "payment-api", "NEW"),
        "amount": ("390.00", "unknown", "411.00"),
        "address.street": ("Quai 9", "crm", "Rue 1"),
        "address.city": ("Basel", "web-booking", None),
    }
    assert (data["composed_by"], data["unstamped"]) == (["web-booking", "payment-api", "crm"], 1)
    page = client.get("/e/order/42").text
    set_by_nobody = f'<a href="#{anchor(str(position_of(story()[3])))}">1 value</a>'
    assert f"3 services set its values; {set_by_nobody} was set by an unknown writer (no stamp)." in page
    assert len(set(data["services"].values())) == 4
    assert [change["stamped_by"] for change in data["changes"]] == ["application"] * 3 + ["none"]
    (street,) = data["changes"][2]["attributes"]
    assert (street["path"], street["before"]["json"], street["after"]["json"]) == ("address.street", "Rue 1", "Quai 9")
    assert data["changes"][0]["context"][0]["name"] == "channel"
    text = " ".join(html.unescape(re.sub("<[^>]*>", "", page)).split())
    for shown in ("created by web-booking version v3 request req-71c2", "context: channel", "Changes oldest first"):
        assert shown in text
    assert text.count('→ "PAID"') == 1


@pytest.mark.parametrize(
    ("at", "number", "status"),
    [
        (str(Position(1, 2, 2)), 2, "PAID"),
        (str(Position(1, 1, 9)), 1, "NEW"),
        ("2026-11-21T03:10:03.886044Z", 1, "NEW"),
        ("2026-11-21T03:10:04", 1, "NEW"),  # without a zone, it is UTC
        ("2026-11-21T05:10:05+02:00", 2, "PAID"),
        ("2027-01-01", 4, "PAID"),
    ],
)
def test_a_row_can_be_seen_as_it_was(client: Client, at: str, number: int, status: str) -> None:
    data = client.json(f"/e/order/42?at={at.replace('+', '%2B')}")
    assert data["number"] == number
    assert {item["path"]: item["value"]["json"] for item in data["attributes"]}["status"] == status


def test_the_slider_leads_to_an_address_that_people_can_share(client: Client) -> None:
    answer = client.get("/e/order/42?change=2")
    assert answer.status == 303
    assert answer.headers["location"] == "/e/order/42?at=00000001%2F0000000000000002%2F00000002"
    page = client.get(answer.headers["location"]).text
    assert 'min="1" max="4" value="2"' in page
    assert 'aria-current="step"' in page
    assert client.get("/e/order/42?change=5").status == client.get("/e/order/42?change=x").status == 400


def test_many_changes_of_a_row_are_divided_into_pages(tmp_path: Path) -> None:
    states = [f'{{"id":1,"n":{number}}}' for number in range(120)]
    created = record(Op.CREATE, states[0], commit=1, key="1")
    changes = [
        record(Op.UPDATE, after, before, commit=number + 2, key="1")
        for number, (before, after) in enumerate(pairwise(states))
    ]
    with closing(FileSink(tmp_path / "log")) as sink:
        sink.recover()
        add(sink, [created, *changes])
    client, shown, address = Client(settings(tmp_path)), set[str](), "/e/order/1"
    for _ in range(3):
        data = client.json(address)
        assert len(data["changes"]) == 50
        shown |= {change["position"] for change in data["changes"]}
        address = data["earlier_changes"]
    assert len(shown) == 120
    assert data["first_number"] == 1
    assert client.json(data["later_changes"])["first_number"] > 1


def test_lost_changes_are_shown_first_with_links_to_what_is_known_about_them(tmp_path: Path) -> None:
    lost = record(Op.CREATE, '{"name":"booking","reason":"the slot was dropped"}', commit=2, key="1", entity="gaps")
    write(tmp_path / "log", [record(Op.CREATE, '{"id":42}', commit=1), lost])
    client = Client(settings(tmp_path))
    assert "Changes were lost</h2>" in client.get("/").text
    (gap,) = client.json("/")["gaps"]
    assert "the slot was dropped" in client.get(gap["address"]).text
    assert f'Changes of any row may have been lost at <a href="{gap["address"]}#at-' in client.get("/e/order/42").text


def test_a_masked_column_stays_masked(tmp_path: Path) -> None:
    masked = '{"id":42,"card":"hmac-sha256:7f3a","cvc":null}'
    write(tmp_path / "log", [record(Op.CREATE, masked, commit=1)])
    data = Client(settings(tmp_path)).json("/e/order/42")
    assert {item["path"]: item["value"]["json"] for item in data["attributes"]} == json.loads(masked)


def test_the_page_of_a_deleted_row_says_that_the_row_is_gone(client: Client) -> None:
    page = client.get("/e/order/43").text
    assert "The row is gone." in page
    data = client.json(f"/e/order/43?at={Position(1, 6, 2)}")
    assert data["exists"]
    assert data["is_past"]


def test_the_page_of_a_moved_row_links_to_its_other_address(client: Client) -> None:
    assert 'It moved to <a href="/e/order/45">' in client.get("/e/order/44").text
    page = client.get("/e/order/45").text
    assert 'It came from <a href="/e/order/44">' in page
    assert 'at <a href="/e/order/44">' in page, "the changes at the other key are marked"
    earlier = client.get("/e/order/45?change=1")
    assert earlier.headers["location"].startswith("/e/order/44?at=")


def test_the_page_names_the_old_values_that_the_log_lacks(client: Client) -> None:
    page = client.get("/e/order/46").text
    assert "The database&#39;s log does not have" in page or "The database's log does not have" in page
    assert "Not in the database's log: <bdi>amount</bdi>" in page


def test_hostile_values_are_shown_as_text(client: Client) -> None:
    page = client.get(row_address("seat", HARD_KEY)).text
    assert MARKUP not in page
    assert page.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;") > 3
    assert "\\u202ereversed\\u202c\\u0007" in page
    for character in ("\u202e", "\u202c", "\u0007"):
        assert character not in page
    assert client.get(f"/search?q={MARKUP}").text.count(MARKUP) == 0
    assert client.get(f"/who?service={MARKUP}&identifier={MARKUP}").text.count(MARKUP) == 0
    assert MARKUP not in client.get("/").text + client.get("/tail").text + client.get("/e/seat").text


@pytest.mark.parametrize("target", ["/e/guest/8", "/e/guest/9", "/", "/tail", "/e/guest"])
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_a_page_about_huge_rows_is_small(client: Client, target: str, accept: str) -> None:
    answer = client.get(target, accept=accept)
    assert answer.status == 200
    assert len(answer.body) < PAGE_BYTES_MAX


def test_a_huge_value_is_shortened_to_the_part_that_differs(client: Client) -> None:
    change = client.json("/e/guest/8")["changes"][1]
    (note,) = change["attributes"]
    assert note["after"]["text"].startswith("…xxx")
    assert note["after"]["text"].endswith('y"')
    assert (note["after"]["chars"], note["after"]["json"]) == (len(LONG) + 3, None)
    assert "(1,000,003 characters)" in client.get("/e/guest/8").text


def test_columns_that_the_page_leaves_out_are_counted(client: Client) -> None:
    data = client.json("/e/guest/9")
    assert len(data["attributes"]) + data["more_attributes"] == 5000
    (change,) = data["changes"]
    assert len(change["attributes"]) + change["more"] == 5000


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/search?q=order 42", "/e/order/42"),
        ("/search?q=42", "/e/order/42"),
        ("/search?q=42&entity=order", "/e/order/42"),
        ("/search?q=guest", "/e/guest"),
        ("/search?q=&entity=guest", "/e/guest"),
        ("/e/order?key=42", "/e/order/42"),
        ("/e/seat?key=7&key=a/b&key=", "/e/seat/7/a~2Fb/~"),
    ],
)
def test_a_search_that_names_one_row_leads_to_it(client: Client, target: str, location: str) -> None:
    answer = client.get(target.replace(" ", "%20"))
    assert (answer.status, answer.headers["location"]) == (303, location)


@pytest.mark.parametrize(
    ("target", "keys"),
    [
        ("/e/order?prefix=4", ["46", "45", "44", "43", "42"]),
        ("/e/order?prefix=44", ["44"]),
        ("/e/order?prefix=x", []),
        ("/e/seat?prefix=a/", [HARD_KEY]),
        ("/search?q=4", ["46", "45", "44", "43", "42"]),
        ("/e/guest", ["9", "8", "7"]),
    ],
)
def test_a_prefix_finds_keys_and_lists_the_last_changed_key_first(client: Client, target: str, keys: list[str]) -> None:
    assert [hit["key"] for hit in client.json(target)["hits"]] == keys


def test_the_versions_of_columns_say_what_changed(client: Client) -> None:
    newest, first = client.json("/schemas/order")["versions"]
    assert newest["changes"] == ["amount added: string"]
    assert [(column["name"], column["fate"]) for column in newest["columns"]][-1] == ("amount", "added")
    assert (first["number"], first["changes"]) == (1, [])
    assert "amount added: string" in client.get("/schemas/order").text
    assert "No version of the columns" in client.get("/schemas/guest").text


def test_live_changes_can_be_limited_to_an_entity_or_a_service(client: Client) -> None:
    assert {change["entity"] for change in client.json("/tail?entity=seat")["changes"]} == {"seat"}
    assert [change["key"] for change in client.json("/tail?service=crm")["changes"]] == ["44", "42"]
    assert client.json("/tail?service=nobody-else")["changes"] == []


def test_the_latest_drift_report_is_shown(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "drift" / "latest").mkdir(parents=True)
    report = tmp_path / "drift" / "latest" / "report.json"
    shutil.copy(REPORT, report)
    client = Client(settings(tmp_path))
    assert client.json("/drift")["report"]["verdict"] == "drift"
    page = client.get("/drift").text
    assert '<a href="/e/order/184467">order <bdi>184467</bdi></a>' in page
    assert "<script>alert" not in page
    assert client.json("/")["drift"]["verdict"] == "drift"
    link = '<a class="warn" href="/drift">differences found</a>'
    assert f"Drift report: {link}, 2026-11-21 03:10Z" in client.get("/").text
    report.write_text(json.dumps({"format": 2}))
    assert client.get("/drift").status == 500
    assert client.get("/").status == 200
    assert "the report cannot be read" in client.get("/").text


def test_the_writes_of_a_service_or_a_request_are_listed_by_entity(client: Client) -> None:
    data = client.json("/who?service=web-booking")
    assert [(item["entity"], item["ops"]) for item in data["entities"]] == [
        ("guest", [["creates", 1]]),
        ("order", [["creates", 1]]),
    ]
    assert data["entities"][1]["keys"] == [{"key": "42", "address": "/e/order/42"}]
    assert client.json("/who?identifier=pay-5510")["total"] == 1
    assert client.json("/who?service=web-booking&since=2026-11-21T03:10:07Z")["entities"][0]["entity"] == "guest"
    page = client.get("/who?identifier=pay-5510").text
    assert "wrote 1 change</h2>" in page
    assert "by <bdi>payment-api</bdi>" in page
    assert "Name a service" in client.get("/who").text
    assert "The changelog has no such change" in client.get("/who?service=nobody").text


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/nothing", 404, "The console has no such page."),
        ("/e/nothing", 404, "has no entity nothing"),
        ("/e/nothing/1", 404, "has no entity nothing"),
        ("/schemas/nothing", 404, "has no entity nothing"),
        ("/tail?entity=nothing", 404, "has no entity nothing"),
        ("/tail/events?entity=nothing", 404, "has no entity nothing"),
        ("/search?entity=nothing&q=1", 404, "has no entity nothing"),
        ("/e/order/4711", 404, "has no change of order 4711"),
        ("/e/seat/7", 404, "give the values of hall, row, seat, in this order"),
        ("/e/order/~zz", 404, "This is not the address of a row."),
        ("/e/order/42?at=2020-01-01", 404, "its first change is at 00000001/0000000000000001/00000002"),
        ("/e/order/42?at=yesterday", 400, "The moment is neither a position nor a time."),
        ("/e/order/42?at=0001-01-01T00:00:00%2B14:00", 400, "The moment is neither a position nor a time."),
        ("/who?service=crm&since=yesterday", 400, "The moment is neither a position nor a time."),
    ],
)
def test_an_error_gives_one_clear_page_with_its_status(client: Client, target: str, status: int, text: str) -> None:
    page = client.get(target)
    assert page.status == status
    assert text in page.text
    assert page.text.count("<h1>") == 1
    data = client.get(target, accept="application/json")
    assert data.status == status
    assert text in f"{data.json['error']} {data.json['hint']}"


def test_a_damaged_file_gives_one_clear_page(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    log_file(tmp_path / "log", 2).write_bytes(b"damaged")
    page = Client(settings(tmp_path)).get("/e/order/42")
    assert page.status == 500
    assert "restore the file from a copy" in page.text


def test_without_a_changelog_the_console_says_how_to_get_one(tmp_path: Path) -> None:
    for target in ("/", "/e/order/42", "/tail", "/search?q=1"):
        page = Client(settings(tmp_path)).get(target)
        assert page.status == 503
        assert "`changelog run`" in page.text
