"""Masks the values of a column on Spark's executors, as the service does before it publishes values."""

from changelog.envelope import mask


def hashed(token: str | None, hmac_key: bytes) -> str | None:
    """Returns the JSON that is published for a value with the mask `sha256`. `token` is the value's JSON, or None."""
    return None if token is None else mask.apply("sha256", token.encode(), hmac_key).decode()
