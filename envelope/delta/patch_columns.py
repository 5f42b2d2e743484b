"""Patches of columns of states: those of `envelope.delta.patch_text`, of many updates at once.

What it does with one pair of texts is done here with all pairs of the same form: pieces are compared by Arrow, and only
those that differ are looked at.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from envelope.columnar.flat_json import Form, Mask
from envelope.delta.patch_text import pointer

FORMS_MAX: Final = 16
"""How many forms of states are tried in one batch; each costs a look at all that is left."""

_SCALAR: Final = r'\A(?:"[^"\\]*"|[-+.0-9A-Za-z]+)\z'


def changes(original: pa.StringArray, current: pa.StringArray) -> tuple[pa.StringArray, Mask]:
    """The patches between flat states, none of them null, and of which pairs they are; the others are not as plain.

    They are those of `envelope.delta.patch_text.changes`, byte by byte.
    """
    left = np.arange(len(original))
    found: list[pa.StringArray] = []
    rows = [np.zeros(0, np.int64)]
    tried: set[Form] = set()
    for _ in range(FORMS_MAX):
        if not len(left):
            break
        form = Form.of(original[int(left[0])].as_py().encode())
        if form is None or form in tried:
            left = left[1:]
            continue
        tried.add(form)
        patches, fits = _of_form(form, *(_taken(states, left) for states in (original, current)))
        found.append(patches)
        rows.append(left[fits])
        left = left[~fits][0 if fits[0] else 1 :]
    at = np.concatenate(rows)
    told = np.zeros(len(original), np.bool_)
    told[at] = True
    order = np.argsort(at)
    return pa.concat_arrays(found or [pa.array([], pa.utf8())]).take(pa.array(order)), told


def _taken(states: pa.StringArray, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.StringArray:
    return states if len(rows) == len(states) else states.take(pa.array(rows))


def _of_form(form: Form, original: pa.StringArray, current: pa.StringArray) -> tuple[pa.StringArray, Mask]:
    before, after = form.cut(original), form.cut(current)
    fits = before.fits & after.fits & before.shallow() & after.shallow()
    if not fits.any():
        return pa.array([], pa.utf8()), fits
    if not fits.all():
        kept = pa.array(fits)
        patches, fits[fits] = _of_form(form, original.filter(kept), current.filter(kept))
        return patches, fits
    differing = pc.not_equal(before.pieces(), after.pieces()).to_numpy(zero_copy_only=False)
    rows, columns = np.divmod(np.flatnonzero(differing), len(form.names))
    if not len(rows):
        return pa.array(["[]"] * len(original), pa.utf8()), fits
    was, is_ = before.tokens((columns, rows)), after.tokens((columns, rows))
    plain = pc.and_(pc.match_substring_regex(was, _SCALAR), pc.match_substring_regex(is_, _SCALAR))
    fits[rows[~plain.to_numpy(zero_copy_only=False)]] = False
    tests, replaces = (pa.array(heads, pa.utf8()).take(pa.array(columns)) for heads in _heads(form.names))
    edits = _joined(tests, was, replaces, is_, "}")
    bounds = np.append(0, np.cumsum(np.bincount(rows, minlength=len(original))))
    patches = _joined("[", pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), edits), ","), "]")
    return patches if fits.all() else patches.filter(pa.array(fits)), fits


def _heads(names: Sequence[bytes]) -> tuple[list[str], list[str]]:
    """What stands before each value of an edit, by column: its test's, and its replacement's."""
    pointers = [pointer(name.decode()).decode() for name in names]
    tests = [f'{{"op":"test","path":{each},"value":' for each in pointers]
    return tests, [f'}},{{"op":"replace","path":{each},"value":' for each in pointers]


def _joined(*parts: str | pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")
