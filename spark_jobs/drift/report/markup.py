"""Builds HTML from elements: every text is escaped when it is added, so it can never become markup."""

import html
import unicodedata
from typing import Final

_VOID: Final = frozenset({"link", "meta", "br"})
_ZERO_WIDTH_JOINER: Final = "\u200d"  # emoji are made with it

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that are invisible, or that reorder or end the text around them."""


class Markup(str):
    """Text that is HTML already, as `element` returns it."""

    __slots__ = ()


def visible(text: str) -> str:
    """The text with each invisible or forbidden character replaced by its code."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def spelt(character: str) -> str:
    """The character's code, as JSON and Python spell it."""
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def element(name: str, /, *children: str | None, **attributes: str | int | None) -> Markup:
    """An element. A child that is not Markup is text; None is left out. `class_` means `class`, and `_` means `-`."""
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
