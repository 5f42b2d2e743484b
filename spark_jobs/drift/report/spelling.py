"""Formats numbers, times and values for people."""

import re
import unicodedata
from datetime import UTC, datetime

import msgspec

from changelog.spark_jobs.drift.report.markup import Markup, element, spelt, together, visible

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

KEY_MAX = 120
"""At most this many characters of a key are shown. `keys.jsonl` has the whole key."""


def count(number: int | None) -> str:
    """Formats 1500000 as 1,500,000, and an unknown number as a dash."""
    return "–" if number is None else f"{number:,}"


def plural(number: int, one: str, many: str | None = None) -> str:
    """Formats a number with its noun: 1 key, 2 keys."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def transactions(snapshot: str) -> str:
    """Describes a snapshot of PostgreSQL, `xmin:xmax:xip,…`, in words. Returns any other text unchanged."""
    if re.fullmatch(r"\d+:\d+:(\d+(,\d+)*)?", snapshot) is None:
        return snapshot
    _, end, running = snapshot.split(":")
    running_ids = [xid for xid in running.split(",") if xid]
    ids_text = ", ".join(running_ids[:3]) + (f" and {len(running_ids) - 3} others" if len(running_ids) > 3 else "")
    return f"all transactions below {end}" + (f" but {ids_text}, which were running," if running_ids else ",")


def per_million(ppm: float | None) -> str:
    """Formats a share, given in millionths: a whole number from 100 on, otherwise three significant digits."""
    if ppm is None:
        return "–"
    return f"{ppm:,.0f}" if ppm >= 100 or ppm == 0 else f"{ppm:.3g}"


def seconds(duration_s: float) -> str:
    """Formats a duration: 12.3 s, 4 min 5 s, 2 h 3 min."""
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, rest_s = divmod(round(duration_s), 60)
    return f"{minutes} min {rest_s} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def moment(text: str | None) -> Markup:
    """Formats a time: 21 Nov 2026, 03:10:01 UTC. Any other text is returned unchanged."""
    if text is None:
        return together("–")
    try:
        time = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return together(text)
    time_text = f"{time.day} {MONTHS[time.month - 1]} {time.year}, {time:%H:%M:%S} UTC"
    return element("time", time_text, datetime=text)


def day(text: str) -> str:
    """Formats the day of a time: 21 Nov. Any other text is returned unchanged."""
    try:
        time = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return text
    return f"{time.day} {MONTHS[time.month - 1]}"


def key(text: str) -> Markup:
    """Shows a key. A long key is cut, and its length is added.

    The element `bdi` is for keys with right-to-left characters, which would otherwise reorder the text around them.
    """
    short_text = text[:KEY_MAX] + "…" if len(text) > KEY_MAX else text
    code = element("code", element("bdi", short_text if text else '""'), class_="key")
    if len(text) <= KEY_MAX:
        return code
    return together(code, " ", element("span", f"{len(text):,} characters", class_="quiet"))


def sides(source: msgspec.Raw | None, changelog: msgspec.Raw | None) -> tuple[Markup, Markup]:
    """Shows the values of one column on both sides, with the difference marked.

    Null, an empty string, a missing value and the string `null` all look different.
    """
    if source is None or changelog is None:
        return _value(source), _value(changelog)
    left, right = _shown(source), _shown(changelog)
    if _alike(left, right):  # for example, a composed and a decomposed letter: only their codes differ visibly
        left, right = [_code(character) for character in left], [_code(character) for character in right]
    head = _common(left, right)
    tail = _common(left[head:][::-1], right[head:][::-1])
    if head + tail == 0:
        return _value(source, left), _value(changelog, right)
    return _value(source, _marked(left, head, tail)), _value(changelog, _marked(right, head, tail))


def _value(raw: msgspec.Raw | None, body_parts: list[str] | Markup | None = None) -> Markup:
    if raw is None:
        return element("span", "not there", class_="absent")
    text = bytes(raw).decode()
    body = body_parts if isinstance(body_parts, Markup) else together(*(body_parts or _shown(raw)))
    kind = "null" if text == "null" else "text" if text.startswith('"') else "other"
    return element("bdi", body, class_=f"value {kind}")


def _shown(raw: msgspec.Raw) -> list[str]:
    """Returns the characters of the value's JSON, each as one text. Invisible characters are shown as codes."""
    text = bytes(raw).decode()
    if not text.startswith('"'):
        return [visible(character) for character in text]
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return [
        '"',
        *(escapes.get(character) or visible(character) for character in msgspec.json.decode(text, type=str)),
        '"',
    ]


def _alike(left: list[str], right: list[str]) -> bool:
    left_text, right_text = "".join(left), "".join(right)
    return left_text != right_text and unicodedata.normalize("NFKC", left_text) == unicodedata.normalize(
        "NFKC", right_text
    )


def _code(character: str) -> str:
    return character if character.isascii() else "".join(map(spelt, character))


def _common(left: list[str], right: list[str]) -> int:
    """Returns how many elements at the beginning are the same in both lists."""
    for index, (left_character, right_character) in enumerate(zip(left, right, strict=False)):
        if left_character != right_character:
            return index
    return min(len(left), len(right))


def _marked(characters: list[str], head: int, tail: int) -> Markup:
    end = len(characters) - tail
    middle = element("mark", *characters[head:end]) if end > head else None
    return together("".join(characters[:head]), middle, "".join(characters[end:]))
