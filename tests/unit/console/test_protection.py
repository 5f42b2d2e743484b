"""Tests who may read the console: host names, tokens, cookies and limits. Also tests what the console logs."""

from pathlib import Path
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from changelog.connectors.console.addresses import row_address
from changelog.connectors.web.access import SESSION_S, Access
from changelog.connectors.web.hosts import Hosts
from changelog.connectors.web.limits import CLIENTS_MAX, Rate, Room
from tests.unit.console.client import COOKIE, SECRET, Client
from tests.unit.console.story import HARD_KEY, settings

TOKEN = "a token of a person"


@pytest.fixture
def locked(folder: Path) -> Client:
    """A client of a console that needs a token."""
    access = Access(TOKEN, secret=SECRET, clock=lambda: 1000.0, cookie=COOKIE)
    return Client(settings(folder), access)


def login(client: Client, token: str, following: str = "/", *, peer: str = "127.0.0.1") -> tuple[int, str, str]:
    """Sends the login form. Returns the status, the cookie's header, and the address to which the answer redirects."""
    body = f"token={quote(token)}&next={quote(following)}".encode()
    answer = client.send("POST", "/login", body=body, client=peer)
    return answer.status, answer.headers.get("set-cookie", ""), answer.headers.get("location", "")


@pytest.mark.parametrize("host", ["127.0.0.1:9465", "localhost", "LOCALHOST:80", "[::1]:9465", "127.0.0.1"])
def test_the_console_answers_to_its_own_names(client: Client, host: str) -> None:
    assert client.get("/drift", host=host).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "", "10.0.0.1", "localhost.evil", "[::2]", "[::1].evil.example", "[::1"],
)
def test_the_console_does_not_answer_to_a_foreign_name(client: Client, host: str) -> None:
    answer = client.get("/e/order/42", host=host)
    assert answer.status == 421
    assert b"PAID" not in answer.body


def test_a_console_for_other_machines_answers_to_configured_names_and_its_address() -> None:
    hosts = Hosts(["changelog.example.org"], is_loopback=False)
    assert hosts.knows("changelog.example.org:443", "10.1.2.3")
    assert hosts.knows("10.1.2.3:9465", "10.1.2.3")
    assert not hosts.knows("localhost:9465", "10.1.2.3")
    assert not hosts.knows("10.1.2.4", "10.1.2.3")


def test_a_script_of_another_site_is_refused_but_a_link_works(client: Client) -> None:
    assert client.get("/drift", sec_fetch_site="cross-site", sec_fetch_mode="cors").status == 403
    assert client.get("/drift", sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_allowed(client: Client, method: str) -> None:
    answer = client.send(method, "/e/order/42")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("target", ["/", "/e/order/42", "/nothing", "/static/console.css", "/login"])
def test_every_answer_has_the_headers_that_protect_it(client: Client, target: str) -> None:
    headers = client.get(target).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_without_the_token_the_answer_is_a_form_and_shows_no_row(locked: Client) -> None:
    answer = locked.get("/e/order/42?at=2026")
    assert answer.status == 401
    assert 'name="next" value="/e/order/42?at=2026"' in answer.text
    assert "PAID" not in answer.text
    refused = locked.get("/e/order/42", accept="application/json")
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert refused.json["error"] == "The console needs a token."


@pytest.mark.parametrize("path", ["/", "/e/order/42", "/who", "/tail", "/tail/events", "/search", "/schemas/order"])
def test_every_page_needs_the_token(locked: Client, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}, {"cookie": COOKIE}):
        assert locked.get(path, **headers).status == 401
    assert locked.get("/static/console.css").status == 200


def test_a_request_with_the_token_in_its_header_is_admitted(locked: Client) -> None:
    assert locked.get("/e/order/42", authorization=f"Bearer {TOKEN}").status == 200
    assert locked.get("/e/order/42", authorization=f"bearer  {TOKEN}").status == 200


def test_the_form_sets_a_strict_cookie_that_admits_later_requests(locked: Client) -> None:
    status, cookie, following = login(locked, TOKEN, "/e/order/42?at=x")
    assert (status, following) == (303, "/e/order/42?at=x")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    pair = cookie.partition(";")[0]
    assert locked.get("/e/order/42", cookie=f"other=1; {pair}").status == 200
    assert "Secure" not in cookie


def test_a_cookie_expires_and_cannot_be_forged(folder: Path) -> None:
    now_s = [1000.0]
    access = Access(TOKEN, secret=SECRET, clock=lambda: now_s[0], cookie=COOKIE)
    client = Client(settings(folder), access)
    session = access.session()
    end, _, signature = session.partition(".")
    assert client.get("/drift", cookie=f"{COOKIE}={session}").status == 200
    later = f"{int(end) + 1}.{signature}"
    for forged in (later, f"{end}.", f"{end}", f"{end}.{signature[:-1]}x", "é.é", f"0{session}"):
        assert client.get("/drift", cookie=f"{COOKIE}={forged}").status == 401
    other = Access(TOKEN, secret=b"secret of another process", clock=lambda: now_s[0], cookie=COOKIE)
    assert client.get("/drift", cookie=f"{COOKIE}={other.session()}").status == 401
    now_s[0] += SESSION_S
    assert client.get("/drift", cookie=f"{COOKIE}={session}").status == 401


def test_wrong_tokens_are_refused_and_only_a_few_may_be_tried(locked: Client) -> None:
    answers = [login(locked, f"{TOKEN}{number}")[0] for number in range(6)]
    assert answers == [401] * 5 + [429]
    assert login(locked, TOKEN)[0] == 429
    assert login(locked, TOKEN, peer="127.0.0.2")[0] == 303


def test_a_wrong_token_in_the_header_counts_as_a_login(locked: Client) -> None:
    wrong = [locked.get("/drift", authorization=f"Bearer {TOKEN}{number}").status for number in range(6)]
    assert wrong == [401] * 5 + [429]
    assert locked.get("/drift", authorization=f"Bearer {TOKEN}").status == 429
    assert login(locked, TOKEN)[0] == 429
    assert locked.get("/drift", cookie=f"{COOKIE}={locked.access.session()}").status == 200


def test_right_tokens_and_unneeded_tokens_do_not_count_as_attempts(locked: Client, client: Client) -> None:
    for _ in range(7):
        assert locked.get("/drift", authorization=f"Bearer {TOKEN}").status == 200
        assert client.get("/drift", authorization="Bearer nothing").status == 200


@pytest.mark.parametrize("following", ["//evil.example/", "https://evil.example/", "/\\evil.example", "\t//evil"])
def test_a_login_leads_only_to_pages_of_the_console(locked: Client, following: str) -> None:
    assert login(locked, TOKEN, following)[2] == "/"


@pytest.mark.parametrize("body", [b"token=" + b"x" * 5000, b"&".join(b"a=1" for _ in range(20))])
def test_a_form_that_is_too_long_is_refused(locked: Client, body: bytes) -> None:
    assert locked.send("POST", "/login", body=body).status == 413


def test_a_client_that_asks_too_often_has_to_wait(client: Client) -> None:
    statuses: list[int] = []
    while 429 not in statuses and len(statuses) < 3000:  # a busy machine is hardly faster than the limit
        statuses.append(client.get("/static/icon.svg").status)
    assert statuses[:50] == [200] * 50
    assert 429 in statuses
    assert client.send("GET", "/drift", client="127.0.0.2").status == 200


def test_a_client_may_ask_again_later_and_only_some_clients_are_remembered() -> None:
    now_s = 0.0
    rate = Rate(per_s=2.0, burst=3, clock=lambda: now_s)
    assert [rate.allows("a") for _ in range(4)] == [True, True, True, False]
    now_s = 1.0
    assert [rate.allows("a") for _ in range(3)] == [True, True, False]
    for number in range(CLIENTS_MAX):
        assert rate.allows(str(number))
    assert rate.allows("a"), "the first client must be forgotten"


def test_a_room_admits_only_as_many_clients_as_it_has_places() -> None:
    room = Room(1)
    with room.place() as first, room.place() as second:
        assert (first, second) == (True, False)
    with room.place() as third:
        assert third


def test_a_long_address_is_refused(client: Client) -> None:
    assert client.get(f"/e/order/{'4' * 17_000}").status == 414


def test_the_log_names_pages_and_holds_no_key_and_no_token(locked: Client) -> None:
    with capture_logs() as logs:
        locked.get(row_address("seat", HARD_KEY), authorization=f"Bearer {TOKEN}")
        locked.get("/search?q=Zo%C3%AB&entity=guest", authorization=f"Bearer {TOKEN}")
        locked.get("/e/order/42")
        login(locked, TOKEN)
    assert [(event["page"], event["status"]) for event in logs] == [
        ("key", 200),
        ("search", 200),
        ("none", 401),
        ("login", 303),
    ]
    assert {key for event in logs for key in event} == {"event", "log_level", "method", "ms", "page", "status"}


def test_an_internal_error_shows_no_value(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("a row value")

    monkeypatch.setattr("changelog.connectors.console.pages.key.key_history", fail)
    with capture_logs() as logs:
        answer = client.get("/e/order/42")
    assert answer.status == 500
    assert "ValueError" in answer.text
    assert "a row value" not in answer.text + str(logs)
