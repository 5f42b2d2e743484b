"""Tests that the service reads the stamps that applications write into SQL comments for MySQL and MariaDB."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.decode.statements.statement_stamps import comment_stamp
from changelog_stamps import stamp
from changelog_stamps.members import Stamp
from changelog_stamps.sqlcommenter import NBYTES_MAX, comment, commented

texts = st.text(st.characters(codec="utf-8"), max_size=30)


@given(service=texts, version=texts, identifier=texts)
def test_the_service_reads_the_stamp_of_a_comment(service: str, version: str, identifier: str) -> None:
    text = comment(Stamp(service=service, version=version, identifier=identifier))
    assert text.count("*/") == (1 if service else 0)
    written = comment_stamp(f"{text}UPDATE t SET v = '/*'".encode())
    if not service:
        assert written is None
    else:
        assert written is not None
        assert (written.service_name, written.api_version, written.identifier) == (service, version, identifier)


def test_a_comment_that_would_be_too_long_has_fewer_members() -> None:
    long_stamp = Stamp(service="é" * 170, version="é" * 170, identifier="é" * 170)
    assert len(comment(long_stamp)) <= NBYTES_MAX
    long = Stamp(service="é" * 500, version="v", identifier="é" * 500)
    assert comment(long) == comment(Stamp(service="é" * 500, version="v"))
    assert comment(Stamp(service="é" * 1000)) == ""


@pytest.mark.parametrize(("formatted", "percent"), [(False, "%"), (True, "%%")])
def test_percent_signs_are_doubled_for_drivers_that_format(formatted: bool, percent: str) -> None:
    with stamp(service="a b"):
        assert commented("SELECT %s", formatted=formatted) == f"/*serviceName='a{percent}20b'*/ SELECT %s"
    assert commented("SELECT 1", formatted=formatted) == "SELECT 1"
