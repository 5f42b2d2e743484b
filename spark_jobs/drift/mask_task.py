"""Masks a column's values on Spark's workers, as the service masks them before it publishes."""

from changelog.envelope import mask


def hashed(token: str | None, hmac_key: bytes) -> str | None:
    """Returns what is published for the JSON of a value whose mask is `sha256`; None for None."""
    return None if token is None else mask.apply("sha256", token.encode(), hmac_key).decode()
