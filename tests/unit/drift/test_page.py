"""Tests the HTML of a drift report's page. No text of the report may become markup, and two different values must never
look the same.
"""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.spark_jobs.drift.report import finish, write
from changelog.spark_jobs.drift.report.markup import element, visible
from changelog.spark_jobs.drift.report.spelling import key, moment, per_million, seconds, sides, transactions
from tests.unit.drift.examples import HARD, NIGHTS, both
from tests.unit.drift.reports import entity, report, skipped

VOID = {"link", "meta", "br"}
ALLOWED = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "style",
        "body",
        "main",
        "header",
        "section",
        "footer",
        "article",
        "div",
    ),
    *("h1", "h2", "h3", "h4", "p", "span", "strong", "code", "pre", "bdi", "mark", "a", "time", "br", "dl", "dt", "dd"),
    *("ul", "ol", "li", "table", "caption", "thead", "tbody", "tr", "th", "td", "svg", "rect"),
}


class Read(HTMLParser):
    """Parses a page into its elements and its text. Fails if an end tag does not match its start tag."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [str(value) for name, value in attrs if name == "id"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def plain(markup: str) -> str:
    return Read(markup).text


def rendered(folder: Path, run_report: Any) -> Read:
    return Read(write(folder, run_report).read_text("utf-8"))


@pytest.mark.parametrize("night", NIGHTS)
def test_a_page_is_made_of_known_elements_and_runs_nothing(tmp_path: Path, night: str) -> None:
    page = rendered(tmp_path, NIGHTS[night]())
    assert page.names <= ALLOWED
    assert not [name for name in page.attributes if name.startswith("on") or name == "src"]
    assert len(page.ids) == len(set(page.ids))


def test_texts_that_look_like_markup_stay_text(tmp_path: Path) -> None:
    hard = entity(table=HARD, key=[HARD], verdict="skipped", why=HARD, columns={HARD: 1}, schemaChanged={HARD: HARD})
    hard |= {"changed": 1, "drifted": 1, "ppm": 1.0, "unknown": {HARD: 1}, "sampled": HARD}
    hard["writers"] = [{"serviceName": HARD, "apiVersion": HARD, "drifted": 1}]
    provenance = dict.fromkeys(("serviceName", "apiVersion", "identifier", "context"), HARD)
    provenance["source"] = {"op": HARD, "position": HARD, "committedAt": HARD}  # type: ignore[assignment]
    value = msgspec.Raw(msgspec.json.encode(HARD))
    columns = {HARD: {"source": value, "changelog": value}}
    hard["samples"] = [{"key": HARD, "kind": "changed", "columns": columns, "provenance": provenance}]
    run_report = report(entities={"order": hard}, why=HARD, changelog={"kind": "files", "where": HARD})
    run_report["run"] |= {"name": HARD, "version": HARD, "startedAt": HARD}
    run_report["source"] |= {"kind": HARD, "database": HARD, "server": HARD}
    run_report["fence"] = {
        name: HARD if isinstance(fence_value, str) else fence_value for name, fence_value in run_report["fence"].items()
    }
    page = rendered(tmp_path, finish(run_report, {}, []))
    assert page.names <= ALLOWED
    assert page.text.count(HARD) > 15


def test_gaps_are_shown(tmp_path: Path) -> None:
    gap = {"reason": "the <slot> is gone", "before": None, "position": "00000002/0000000001A00027/00000000"}
    changelog = {"kind": "files", "where": "here", "gaps": [{**gap, "at": "2026-11-21T03:10:02Z"}]}
    page = rendered(tmp_path / "gap", finish(report(changelog=changelog), {}, []))
    assert page.names <= ALLOWED
    assert "Changes were lost" in page.text
    assert "the <slot> is gone" in page.text
    assert "Changes were lost" not in rendered(tmp_path / "none", finish(report(), {}, [])).text


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_is_shown_as_text(text: str, attribute: str) -> None:
    markup = element("p", text, title=attribute)
    assert plain(markup) == visible(text)
    assert visible(visible(text)) == visible(text)
    assert not [
        character
        for character in visible(text)
        if character != " " and not character.isprintable() and character != "\u200d"
    ]


@pytest.mark.parametrize(
    ("source", "changelog", "shown"),
    [
        ("null", '""', ("null", '""')),
        ("null", '"null"', ("null", '"null"')),
        ("-0", "0", ("-0", "0")),
        ("1e+20", "100000000000000000000", ("1e+20", "100000000000000000000")),
        ('"a "', '"a"', ('"a "', '"a"')),
        ('"Zo\u00e9"', '"Zoe\u0301"', ('"Zo\\u00e9"', '"Zoe\\u0301"')),
        ('"\\u00e9"', '"e"', ('"\u00e9"', '"e"')),
        ('"a\\nb"', '"a b"', ('"a\\nb"', '"a b"')),
        ('"a\u00a0b"', '"a b"', ('"a\\u00a0b"', '"a b"')),
        ('"\u202eabc"', '"abc"', ('"\\u202eabc"', '"abc"')),
        ('"משה"', '"👩‍💻"', ('"משה"', '"👩‍💻"')),
        ('{"a": [1, null]}', '{"a": []}', ('{"a": [1, null]}', '{"a": []}')),
        ('"\\""', '"\\\\"', ('"\\""', '"\\\\"')),
    ],
)
def test_two_values_never_look_the_same(source: str, changelog: str, shown: tuple[str, str]) -> None:
    pair = both(source, changelog)
    assert tuple(map(plain, sides(pair["source"], pair["changelog"]))) == shown


@settings(deadline=None)
@given(st.text(max_size=8), st.text(max_size=8))
def test_different_texts_look_different(source: str, changelog: str) -> None:
    left, right = (msgspec.Raw(msgspec.json.encode(value)) for value in (source, changelog))
    first, second = sides(left, right)
    assert (plain(first) == plain(second)) == (source == changelog)
    assert ("<mark>" in first + second) <= (source != changelog)


def test_a_missing_side_is_not_shown_as_null() -> None:
    present, absent = sides(msgspec.Raw(b"null"), None)
    assert (plain(present), plain(absent)) == ("null", "not there")


def test_a_long_key_is_cut_and_says_how_long_it_is() -> None:
    assert plain(key("x" * 10_000)) == "x" * 120 + "… 10,000 characters"
    assert plain(key("x" * 120)) == "x" * 120
    assert plain(key("")) == '""'


def test_numbers_and_times_are_written_for_people() -> None:
    assert [per_million(number) for number in (None, 0.0, 0.0123, 11.14, 99.96, 256_477.3)] == [
        *("–", "0", "0.0123", "11.1", "100", "256,477")
    ]
    assert [seconds(number) for number in (0.04, 12.34, 75, 7_325)] == ["0.0 s", "12.3 s", "1 min 15 s", "2 h 2 min"]
    assert plain(moment("2026-11-21T04:10:00+01:00")) == "21 Nov 2026, 03:10:00 UTC"
    assert (plain(moment("yesterday")), plain(moment(None))) == ("yesterday", "–")


def test_unknown_writers_are_shown_once(tmp_path: Path) -> None:
    order = entity(changed=2)
    order["writers"] = [{"serviceName": name, "apiVersion": name, "drifted": 1} for name in ("unknown", None)]
    text = rendered(tmp_path, finish(report(entities={"order": order}), {}, [])).text
    assert text.count("unknown") == 1
    assert "read from the table; who wrote them is not known" in text


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        ("931:931:", "all transactions below 931,"),
        ("929:931:929", "all transactions below 931 but 929, which were running,"),
        ("1:9:1,2,3,4,5", "all transactions below 9 but 1, 2, 3 and 2 others, which were running,"),
        ("9-15:x", "9-15:x"),
    ],
)
def test_a_snapshot_is_described_in_words(snapshot: str, words: str) -> None:
    assert transactions(snapshot) == words


def test_the_sentence_under_the_verdict_sums_up_the_run(tmp_path: Path) -> None:
    def page_text(entities: dict[str, Any]) -> str:
        return rendered(tmp_path, finish(report(entities=entities), {}, [])).text

    assert "1,000,000 rows of 1 entity: the changelog says the same." in page_text({"order": entity()})
    assert "1 key of 1,000,000 rows drifted, in 1 of 1 entity: 1 extra." in page_text({"order": entity(extra=1)})
    assert "There was nothing to compare." in page_text({"order": skipped()})
    changed = {"order": entity(schemaChanged={"note": "added"}), "guest": entity()}
    assert "Schema changed" in page_text(changed)
    assert "No key of 2,000,000 rows drifted. The schema of order changed." in page_text(changed)
