"""Builds HTML from elements: every text is escaped when it is added, so it can never become markup."""

import html
import unicodedata
from typing import Final

_VOID: Final = frozenset({"link", "meta", "br"})
_ZERO_WIDTH_JOINER: Final = "\u200d"  # it joins several emoji into one, so it must stay

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters that are invisible, or that reorder or end the text around them."""


class Markup(str):
    """Text that already is HTML, so `element` does not escape it again. `element` itself returns such text."""

    __slots__ = ()


def visible(text: str) -> str:
    """Replaces each invisible character, each control character and each unusual space by its code."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def spelt(character: str) -> str:
    r"""Returns the character's code, as in a string literal of Python: `\u200b`."""
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def element(name: str, /, *children: str | None, **attributes: str | int | None) -> Markup:
    """Returns an element. A child that is not Markup is text, and is escaped; a child that is None is left out.

    In the names of attributes, a `_` at the end is dropped (`class_`), and any other `_` becomes `-` (`aria_label`).
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(visible(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{attribute_text}>")
    return Markup(f"<{name}{attribute_text}>{together(*children)}</{name}>")


def together(*children: str | None) -> Markup:
    """Returns the children, one after another."""
    return Markup("".join(_inner(child) for child in children if child is not None))


def _inner(child: str) -> str:
    return child if isinstance(child, Markup) else html.escape(visible(child), quote=False)


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    odd_space = category == "Zs" and character != " "
    hidden = category in _HIDDEN and character != _ZERO_WIDTH_JOINER
    return spelt(character) if hidden or odd_space else character
