"""Tests how stamps are read from comments in statements and from tags of GTIDs."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.decode.statements.statement_stamps import comment_stamp, tag_stamp
from changelog.envelope.model import Stamp
from changelog.envelope.stamp import NBYTES_MAX

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(service=TEXTS.filter(bool), version=TEXTS, identifier=TEXTS)
def test_percent_encoded_values_are_read(service: str, version: str, identifier: str) -> None:
    values = {"traceparent": "00-5b", "identifier": identifier, "serviceName": service, "apiVersion": version}
    comment = ",".join(f"{name}='{quote(value, safe='')}'" for name, value in values.items())
    stamp = Stamp(service_name=service, api_version=version, identifier=identifier)
    assert comment_stamp(f" /*{comment}*/ DELETE FROM item".encode()) == stamp


@pytest.mark.parametrize(
    "sql",
    [
        b"",
        b"UPDATE item SET a = '/*serviceName=''till''*/'",
        b"UPDATE item SET a = 1 /*serviceName='till'*/",
        b"/* a comment */ /*serviceName='till'*/ UPDATE item SET a = 1",
        b"/*apiVersion='v2'*/ UPDATE item SET a = 1",
        b"/*serviceName=''*/ UPDATE item SET a = 1",
        b"/*serviceName='till' UPDATE item SET a = 1",
        b"/*+ serviceName='till' */ UPDATE item SET a = 1",
        b"/*!50000 serviceName='till' */ UPDATE item SET a = 1",
        b"-- serviceName='till'\nUPDATE item SET a = 1",
        b"/*serviceName='" + b"x" * NBYTES_MAX + b"'*/ UPDATE item SET a = 1",
    ],
)
def test_statements_without_a_valid_stamp_have_no_stamp(sql: bytes) -> None:
    assert comment_stamp(sql) is None


def test_quotes_can_be_escaped() -> None:
    stamp = comment_stamp(rb"/*serviceName='the\'till\\' , apiVersion='2' */ UPDATE")
    assert stamp == Stamp(service_name=r"the'till" + "\\", api_version="2", identifier="")


def test_the_tag_of_a_gtid_names_the_service() -> None:
    assert tag_stamp("till") == Stamp(service_name="till", api_version="", identifier="")
    assert tag_stamp("") is None
