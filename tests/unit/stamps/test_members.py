"""Tests the members of stamps that applications write.

The service must be able to read each stamp. Whatever arguments an application passes, no error may be raised.
"""

import enum
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.envelope.stamp import parse
from changelog_stamps import current, stamp, warned
from changelog_stamps.members import CONTEXT_NBYTES_MAX, MEMBER_NBYTES_MAX, Stamp, altered

NOBODY = Stamp()


class Name(enum.StrEnum):
    SHOP = "shop"


class Raising:
    def __str__(self) -> str:
        raise RuntimeError("called")


class RaisingContext(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


@pytest.fixture(autouse=True)
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warned, "_problems", set())


DEEP = json.loads('{"a":' * 33 + "1" + "}" * 33)

anything: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.text(st.characters(), max_size=40),
    st.sampled_from([7, b"x", "\ud800", "x" * 2000, "é" * 400, Name.SHOP, Raising(), "\x00", {"a": 1}]),
)
contexts: st.SearchStrategy[Any] = st.one_of(
    anything,
    st.dictionaries(st.text(st.characters(), max_size=5), st.recursive(anything, st.lists, max_leaves=4), max_size=3),
    st.sampled_from(
        [{"a": "x" * 5000}, {"a": float("nan")}, {1: 2}, {(1, 2): 3}, json.loads('{"a":' * 40 + "1" + "}" * 40)]
    ),
)


@settings(max_examples=200)
@given(service=anything, version=anything, identifier=anything, context=contexts)
def test_the_service_reads_what_the_stamp_says(service: Any, version: Any, identifier: Any, context: Any) -> None:
    stamped = altered(NOBODY, service=service, version=version, identifier=identifier, context=context)
    if stamped.text is None:
        assert stamped.service == ""
        return
    assert stamped.text.isascii()
    assert "\x00" not in stamped.text
    written = parse(stamped.text.encode())
    assert written.problem is None
    assert written.stamp is not None
    assert written.stamp.service_name == stamped.service
    assert (written.stamp.api_version, written.stamp.identifier) == (stamped.version, stamped.identifier)
    assert written.stamp.context == stamped.context


def test_each_member_has_a_limit_and_loses_nothing_below_it() -> None:
    longest = "x" * (MEMBER_NBYTES_MAX - 2)
    context = {"a": "x" * (CONTEXT_NBYTES_MAX - len('{"a": ""}'))}
    stamped = altered(NOBODY, service=longest, version=longest, identifier=longest, context=context)
    assert (stamped.service, stamped.version, stamped.identifier) == (longest,) * 3
    assert stamped.context == json.dumps(context)
    assert stamped.text is not None
    assert parse(stamped.text.encode()).problem is None
    context["a"] += "x"
    assert altered(stamped, identifier=longest + "x", context=context) == Stamp(service=longest, version=longest)


def test_the_member_of_an_enumeration_is_its_text() -> None:
    assert altered(NOBODY, service=Name.SHOP).service == "shop"


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"service": 7}, "the service of a stamp is of type int, not text; it is left out"),
        ({"version": "\ud800"}, "the version of a stamp has half of a surrogate pair; it is left out"),
        ({"identifier": "x" * 2000}, "the identifier of a stamp has more than 1024 bytes; it is left out"),
        ({"context": [("a", 1)]}, "the context of a stamp is of type list, not a mapping; it is left out"),
        ({"context": RaisingContext()}, "the context of a stamp cannot be JSON (RuntimeError); it is left out"),
        ({"context": {"a": object()}}, "the context of a stamp cannot be JSON (TypeError); it is left out"),
        ({"context": {"a": "x" * 5000}}, "the context of a stamp has more than 4096 bytes; it is left out"),
        (
            {"context": DEEP},
            "the context of a stamp nests deeper than 32 levels; it is left out",
        ),
    ],
)
def test_each_problem_is_logged_once_and_without_values(
    members: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert altered(NOBODY, **members) == NOBODY
    assert [record.getMessage() for record in caplog.records] == [problem]


def test_an_inner_block_overrides_members_of_the_stamp_around_it() -> None:
    assert current() == NOBODY
    with stamp(service="shop", version="v1", identifier="r-1", context={"a": 1}):
        with stamp(identifier="r-2"):
            assert current() == Stamp(service="shop", version="v1", identifier="r-2", context='{"a": 1}')
        with stamp(identifier="", context={}):
            assert current() == Stamp(service="shop", version="v1", context="{}")
        assert current().identifier == "r-1"
    assert current() == NOBODY
