"""Prepares values for a page: short enough to be read, and harmless whatever they contain."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import Raw

from changelog.connectors.terminal import safe
from changelog.envelope.model import Missing

TEXT_CHARS = 240
"""A page shows at most this many characters of a value: the beginning or, if two values are compared, the part around
their first difference.
"""

CONTEXT_CHARS = 40
"""How many characters are shown before the first difference of two long values."""

JSON_CHARS = 4096
"""The JSON of a page contains a value only if the value has at most this many characters."""

ValueKind = Literal["value", "null", "absent", "unavailable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of an attribute, as a page shows it.

    `text` is the JSON text, cut to `TEXT_CHARS`; control characters, and characters that change the reading direction,
    are escaped. `json` is the whole value, None if it is longer than `JSON_CHARS`. `chars` is the length of the whole
    value. An *absent* value does not exist; an *unavailable* one exists, but the changelog does not know it.
    """

    kind: ValueKind
    text: str
    json: Raw | None = None
    chars: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether `text` is only a part of the value."""
        return self.chars > TEXT_CHARS


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a text, and whether this part differs from the text with which the whole is compared."""

    text: str
    differs: bool


Content = str | Missing | None
"""The JSON text of a value; MISSING if it does not exist, None if it is not known."""


def value(content: Content) -> Value:
    """Returns one value for a page."""
    return _value(content, 0)


def pair(before: Content, after: Content) -> tuple[Value, Value]:
    """Returns two values for a page. If one is long, both are cut around their first difference."""
    start = 0
    if isinstance(before, str) and isinstance(after, str) and max(len(before), len(after)) > TEXT_CHARS:
        common = len(os.path.commonprefix([before, after]))  # noqa: RUF071 - compares characters, not paths
        start = max(common - CONTEXT_CHARS, 0)
    return _value(before, start), _value(after, start)


def parts(shown: Value, other: Value) -> Iterator[Part]:
    """Yields the text of a value in parts: those that are the same in `other`, and those that differ.

    Parts are marked as different only if the values have much in common. Otherwise the marks would help nobody.
    """
    text, compared = shown.text, other.text
    start = len(os.path.commonprefix([text, compared]))  # noqa: RUF071
    rest, compared_rest = text[start:][::-1], compared[start:][::-1]
    end = len(text) - len(os.path.commonprefix([rest, compared_rest]))  # noqa: RUF071
    is_similar = shown.kind == other.kind == "value" and (len(text) - (end - start)) * 2 >= len(text) > 4
    if not is_similar:
        yield Part(text=text, differs=False)
        return
    for piece, differs in ((text[:start], False), (text[start:end], True), (text[end:], False)):
        if piece:
            yield Part(text=piece, differs=differs)


def _value(content: Content, start: int) -> Value:
    if content is None:
        return Value(kind="unavailable", text="unavailable")
    if isinstance(content, Missing):
        return Value(kind="absent", text="absent")
    chars, text = len(content), content[start : start + TEXT_CHARS]
    if chars > TEXT_CHARS:
        text = f"{'…' if start else ''}{text}{'…' if start + TEXT_CHARS < chars else ''}"
    return Value(
        kind="null" if content == "null" else "value",
        text=safe(text),
        json=_whole(content) if chars <= JSON_CHARS else None,
        chars=chars,
    )


def _whole(content: str) -> Raw:
    """Returns the value as JSON. Older versions of this program could store rows whose text is not JSON; such a text
    becomes a JSON string.
    """
    try:
        msgspec.json.decode(content, type=Raw)
    except msgspec.MsgspecError:
        return Raw(msgspec.json.encode(content))
    return Raw(content.encode())
