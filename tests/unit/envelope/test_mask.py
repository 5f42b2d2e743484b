"""Tests masks, which hide the values of columns."""

import hashlib
import hmac

import pytest

from changelog.envelope import mask

KEY = b"key"


def test_the_mask_null_gives_null() -> None:
    assert mask.apply("null", b'"a@example.org"', KEY) == b"null"


def test_sha256_is_the_hmac_of_the_canonical_text() -> None:
    digest = hmac.new(KEY, b'"a@example.org"', hashlib.sha256).hexdigest()
    assert mask.apply("sha256", b'"a@example.org"', KEY) == f'"{digest}"'.encode()


def test_equal_values_have_equal_masks() -> None:
    assert mask.apply("sha256", b'{"b":1, "a":"\\u00e9"}', KEY) == mask.apply("sha256", '{"a":"é","b":1}'.encode(), KEY)
    assert mask.apply("sha256", b"1", KEY) != mask.apply("sha256", b'"1"', KEY)
    assert mask.apply("sha256", b"1", KEY) != mask.apply("sha256", b"1", b"other")


def test_a_dropped_column_has_no_value() -> None:
    with pytest.raises(ValueError, match="no value"):
        mask.apply("drop", b"1", KEY)


def test_the_id_depends_on_masks_and_key_but_not_on_the_order_of_masks() -> None:
    masks: dict[str, mask.MaskKind] = {"email": "sha256", "name": "null"}
    id_ = mask.mask_id(masks, KEY)
    assert id_ is not None
    assert len(id_) == 16
    assert mask.mask_id(dict(reversed(masks.items())), KEY) == id_
    assert len({id_, mask.mask_id(masks), mask.mask_id({**masks, "name": "drop"}, KEY)}) == 3
    assert mask.mask_id({}) is None
