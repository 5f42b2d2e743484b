"""Tests the addresses of rows in the console. The console must find the key of a row in the address of the row's page,
whatever characters the key has.
"""

import re
from urllib.parse import quote, urljoin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.console.addresses import key_of, row_address, with_query
from changelog.envelope.key import key_text

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["", ".", "..", "~", "a/b", '["a","b"]', "%2F", "?#", "é", "\0truncate", "a.b"]
)


@given(columns=st.lists(TEXTS, min_size=1, max_size=4))
@settings(max_examples=150)
def test_an_address_leads_to_its_key(columns: list[str]) -> None:
    key = key_text(columns)
    address = row_address("order", key)
    assert key_of(address.removeprefix("/e/order/")) == key
    assert re.fullmatch(r"[A-Za-z0-9_.~/-]+", address)
    assert quote(address) == address
    assert urljoin("http://127.0.0.1/", address) == f"http://127.0.0.1{address}", "a browser would change this address"


@given(path=st.text("aA0~2F.-_/é%", max_size=8))
@settings(max_examples=100)
def test_each_path_is_refused_or_names_a_key(path: str) -> None:
    key = key_of(path)
    if key is not None:
        assert key_of(row_address("order", key).removeprefix("/e/order/")) == key


@pytest.mark.parametrize("path", ["", "~2", "~zz", "a b", "é", "~FF", "a//b", "%41"])
def test_a_path_that_is_no_address_of_a_key_is_refused(path: str) -> None:
    assert key_of(path) is None


def test_usual_keys_are_readable_in_addresses() -> None:
    assert row_address("order", "42") == "/e/order/42"
    assert row_address("seat", key_text(["7", "eu-west"])) == "/e/seat/7/eu-west"
    assert with_query("/who", service="a b", identifier=None) == "/who?service=a+b"
