"""Gives a code (a number) to each slice of a buffer. Slices with the same content have the same code."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from changelog.connectors.sources.mysql.decode.usual.headers import Ints, Octets

_COMPARED_MAX = 8
"""Each of the first `_COMPARED_MAX` contents is compared with all slices at once. The other slices are then looked up
one by one, because comparing all of them with each further content would take longer.
"""


def distinct(octets: Octets, begins: Ints, lengths: Ints) -> tuple[Ints, Sequence[int]]:
    """Returns the code of each slice's content, and for each code the number of the first slice that has it.

    A slice with a negative length has the code -1.
    """
    codes, examples = np.full(len(begins), -1, np.int64), list[int]()
    places = np.flatnonzero(lengths >= 0)
    while len(places) and len(examples) < _COMPARED_MAX:
        first = int(places[0])
        candidates = places[lengths[places] == lengths[first]]
        equal = are_equal(octets, begins[candidates], int(begins[first]), int(lengths[first]))
        codes[candidates[equal]] = len(examples)
        examples.append(first)
        places = places[codes[places] < 0]
    code_by_content: dict[bytes, int] = {}
    for number, begin, length in zip(places.tolist(), begins[places].tolist(), lengths[places].tolist(), strict=True):
        content = octets[begin : begin + length].tobytes()
        if content not in code_by_content:
            code_by_content[content] = len(examples)
            examples.append(number)
        codes[number] = code_by_content[content]
    return codes, examples


def are_equal(octets: Octets, begins: Ints, example: int, length: int) -> npt.NDArray[np.bool_]:
    """Returns a mask of the slices that equal the slice at the offset `example`. All slices have `length` bytes."""
    if not length:
        return np.ones(len(begins), bool)
    windows: npt.NDArray[np.void] = np.ndarray((len(octets) - length + 1,), f"V{length}", buffer=octets, strides=(1,))
    contents = windows[begins].view(np.uint8).reshape(len(begins), length)
    mask: npt.NDArray[np.bool_] = (contents == octets[example : example + length]).all(axis=1)
    return mask
