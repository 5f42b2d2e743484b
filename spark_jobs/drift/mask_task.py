"""Masks a column's values on Spark's executors, in the same way as the service does before it publishes them."""

from changelog.envelope import mask


def hashed(token: str | None, hmac_key: bytes) -> str | None:
    """Returns the JSON that is published for a value with the mask `sha256`. `token` is the value's JSON, or None."""
    return None if token is None else mask.apply("sha256", token.encode(), hmac_key).decode()
