"""Makes the JSON Patches of many updates at once, from the rows before and after each update.

`changelog.envelope.delta.patch_text` makes the same patches one at a time. This module makes them only for rows that
are flat JSON objects. It cuts a row into *pieces*, one for each member. Rows whose members have the same names, in the
same order, have the same *form* (`changelog.envelope.columnar.flat_json`). Arrow compares the pieces of all updates of
one form at once. Only pieces that differ are processed further.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changelog.envelope.columnar.flat_json import Form, Mask
from changelog.envelope.delta.patch_text import pointer

FORMS_MAX: Final = 16
"""The most attempts to find a form in one batch. Each successful attempt costs a pass over all remaining rows."""

_SCALAR: Final = r'\A(?:"[^"\\]*"|[-+.0-9A-Za-z]+)\z'


def changes(original: pa.StringArray, current: pa.StringArray) -> tuple[pa.StringArray, Mask]:
    """Compares each state in `original` with the state in `current` at the same index. No state may be null.

    Returns patches for as many of these pairs as possible, and a mask of the pairs that have a patch. A pair has none
    if its states have different forms or are not plain (see `Form.of`), or if it remains after `FORMS_MAX` attempts to
    find a form. The patches are byte for byte those that `changelog.envelope.delta.patch_text.changes` makes.
    """
    remaining = np.arange(len(original))
    patches: list[pa.StringArray] = []
    rows = [np.zeros(0, np.int64)]
    tried_forms: set[Form] = set()
    for _ in range(FORMS_MAX):
        if not len(remaining):
            break
        form = Form.of(original[int(remaining[0])].as_py().encode())
        if form is None or form in tried_forms:
            remaining = remaining[1:]
            continue
        tried_forms.add(form)
        of_form, fits = _of_form(form, *(_taken(states, remaining) for states in (original, current)))
        patches.append(of_form)
        rows.append(remaining[fits])
        remaining = remaining[~fits][0 if fits[0] else 1 :]
    patched_rows = np.concatenate(rows)
    patched = np.zeros(len(original), np.bool_)
    patched[patched_rows] = True
    order = np.argsort(patched_rows)
    return pa.concat_arrays(patches or [pa.array([], pa.utf8())]).take(pa.array(order)), patched


def _taken(states: pa.StringArray, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.StringArray:
    return states if len(rows) == len(states) else states.take(pa.array(rows))


def _of_form(form: Form, original: pa.StringArray, current: pa.StringArray) -> tuple[pa.StringArray, Mask]:
    before, after = form.cut(original), form.cut(current)
    fits = before.fits & after.fits & before.shallow() & after.shallow()
    if not fits.any():
        return pa.array([], pa.utf8()), fits
    if not fits.all():
        fitting = pa.array(fits)
        patches, fits[fits] = _of_form(form, original.filter(fitting), current.filter(fitting))
        return patches, fits
    differing = pc.not_equal(before.pieces(), after.pieces()).to_numpy(zero_copy_only=False)
    rows, columns = np.divmod(np.flatnonzero(differing), len(form.names))
    if not len(rows):
        return pa.array(["[]"] * len(original), pa.utf8()), fits
    old, new = before.tokens((columns, rows)), after.tokens((columns, rows))
    plain = pc.and_(pc.match_substring_regex(old, _SCALAR), pc.match_substring_regex(new, _SCALAR))
    fits[rows[~plain.to_numpy(zero_copy_only=False)]] = False
    tests, replaces = (pa.array(heads, pa.utf8()).take(pa.array(columns)) for heads in _heads(form.names))
    edits = _joined(tests, old, replaces, new, "}")
    bounds = np.append(0, np.cumsum(np.bincount(rows, minlength=len(original))))
    patches = _joined("[", pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), edits), ","), "]")
    return patches if fits.all() else patches.filter(pa.array(fits)), fits


def _heads(names: Sequence[bytes]) -> tuple[list[str], list[str]]:
    """Returns two lists of texts, each with one text for each column.

    The patch of a column is a `test` of the old value and a `replace` by the new value. The first list has what comes
    before the old value in this patch, and the second list what comes between the old and the new value.
    """
    paths = [pointer(name.decode()).decode() for name in names]
    tests = [f'{{"op":"test","path":{path},"value":' for path in paths]
    return tests, [f'}},{{"op":"replace","path":{path},"value":' for path in paths]


def _joined(*parts: str | pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")
