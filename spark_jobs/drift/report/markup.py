"""HTML by elements: every text is escaped where it goes in, and so cannot be anything but text."""

import html
import unicodedata
from typing import Final

_VOID: Final = frozenset({"link", "meta", "br"})
_ZERO_WIDTH_JOINER: Final = "\u200d"  # emoji are made with it

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that nobody sees, or that reorder or end what stands around them."""


class Markup(str):
    """Text that is HTML already: what `element` gives."""

    __slots__ = ()


def visible(text: str) -> str:
    """The text with the code of each character that could not be seen, or could not stand in a page, in its place."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def spelt(character: str) -> str:
    """The character's code, as JSON and Python spell it."""
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def element(name: str, /, *children: str | None, **attributes: str | int | None) -> Markup:
    """An element; a child that is no Markup is text, None is none. `class_` is `class`, `_` in a name is `-`."""
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(visible(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{attribute_text}>")
    return Markup(f"<{name}{attribute_text}>{together(*children)}</{name}>")


def together(*children: str | None) -> Markup:
    """Children in a row."""
    return Markup("".join(_inner(child) for child in children if child is not None))


def _inner(child: str) -> str:
    return child if isinstance(child, Markup) else html.escape(visible(child), quote=False)


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    odd_space = category == "Zs" and character != " "
    hidden = category in _HIDDEN and character != _ZERO_WIDTH_JOINER
    return spelt(character) if hidden or odd_space else character
