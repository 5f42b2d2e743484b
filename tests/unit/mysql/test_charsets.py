"""Tests how texts are converted to UTF-8. For every character, `tests/integration/mysql/test_charsets.py` compares the
result with that of a server.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.values.text.charset_tables import MULTI_BYTE, SINGLE_BYTE
from changelog.connectors.sources.mysql.values.text.charsets import to_utf8
from changelog.envelope.errors import ChangelogError, Kind

NAMES = (*SINGLE_BYTE, *MULTI_BYTE, "binary", "ucs2", "utf16", "utf16le", "utf32", "utf8mb3", "utf8mb4")


@pytest.mark.parametrize(
    ("collation", "text", "utf8"),
    [
        (8, b"a\xe4\x80\x81", "aä€\x81"),  # latin1
        (1032, b"\xe4", "ä"),  # latin1, a NOPAD collation of MariaDB
        (10, b"[\x80", "Ä?"),  # swe7
        (63, "größer".encode(), "größer"),  # binary
        (35, b"\xd8\x3d\xde\x00\x00a", "??a"),  # ucs2
        (54, b"\xd8\x3d\xde\x00\x00a", "😀a"),  # utf16
        (60, b"\x00\x00\xd8\x00\x00\x00\x00a", "?a"),  # utf32
        (45, b"\xed\xa0\x80a", "?a"),  # utf8mb4
        (2304, "😀".encode(), "😀"),  # utf8mb4, a collation of MariaDB for Unicode 14
        (1, b"\xf9\xd6\xa4\x40a", "碁一a"),  # big5; Python does not know the first character
        (1, b"\xa2\xcca", "\ufffda"),  # big5; Python and the server map this character differently
        (1, b"\xf9\xfe\xa4\x40", "?一"),  # big5; Unicode does not have the first character
        (13, b"\x81\x5f\xb1", "\\ｱ"),  # sjis
        (13, b"\xfc\xfc\xb1a", "?ｱa"),
        (12, b"\xf5\xa1\x8f\xfe\xfe\x8e\xb1a", "\ue000\ue757ｱa"),  # ujis
        (12, b"\x8e\xa0a", "??a"),
        (97, b"\xad\xa1\x8f\xf3\xf3\x8f\xf4\xa1", "①ⅰⅢ"),  # eucjpms
        (248, b"\x81\x35\xf4\x37\xfe\x39\xfe\x39", "\ue7c7?"),  # gb18030
        (19, b"\x81", "?"),  # euckr; the last byte of a character is missing
    ],
)
def test_a_text_is_converted_from_its_character_set(collation: int, text: bytes, utf8: str) -> None:
    assert to_utf8(collation, {})(text).decode() == utf8


@given(name=st.sampled_from(NAMES), text=st.binary(max_size=12))
def test_any_bytes_give_utf8_or_are_malformed(name: str, text: bytes) -> None:
    try:
        to_utf8(9999, {9999: name})(text).decode()
    except ChangelogError as error:
        if error.kind is not Kind.MALFORMED:
            raise


@given(text=st.text(st.characters(max_codepoint=0x7F)), name=st.sampled_from([*SINGLE_BYTE, *MULTI_BYTE]))
def test_ascii_is_the_same_in_all_character_sets_but_swe7(text: str, name: str) -> None:
    assert name == "swe7" or to_utf8(9999, {9999: name})(text.encode()) == text.encode()


@pytest.mark.parametrize("collation", [None, 9999])
def test_an_unknown_character_set_is_not_supported(collation: int | None) -> None:
    with pytest.raises(ChangelogError, match="not supported") as raised:
        to_utf8(collation, {})
    assert raised.value.kind is Kind.PRECONDITION
    with pytest.raises(ChangelogError, match="klingon"):
        to_utf8(9999, {9999: "klingon"})
