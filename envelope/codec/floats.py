"""Converts floats to text as PostgreSQL does: with as few digits as possible.

In PostgreSQL, float8out and float4out do this if `extra_float_digits` is 1 (src/common/d2s.c and f2s.c, after Ulf
Adams, *Ryū*). There is a midpoint between a float and its next smaller float, and another between it and the next
larger one. Every number strictly between these two midpoints reads back as the float. Unlike Python's `repr`,
PostgreSQL never prints a number that is exactly a midpoint. For example, 1e23 is a midpoint, so PostgreSQL prints
9.999999999999999e+22 where Python prints 1e+23.
"""

import math

import numpy as np

_FIXED_FROM = -4
# In each pair, the first value is for double precision, and the second for single precision.
_FIXED_BELOW = 15, 6  # Numbers with this exponent or a larger one are written with an e.
_BITS = 53, 24
_EXACT_FROM = 2**53, 2**24  # From here on, neighbouring floats are 2 or more apart, so an integer can be a midpoint.


def token(value: float, *, single: bool) -> bytes:
    """Returns the JSON token of a float. `single` means single precision. NaN and infinities become JSON strings."""
    if not math.isfinite(value):
        return b'"NaN"' if math.isnan(value) else b'"Infinity"' if value > 0 else b'"-Infinity"'
    if value == 0:
        return b"-0" if math.copysign(1, value) < 0 else b"0"
    sign = "-" if value < 0 else ""
    digits, exponent = _shortest(abs(value), single=single)
    return (sign + _written(digits, exponent, single=single)).encode()


def _shortest(value: float, *, single: bool) -> tuple[str, int]:
    """Returns the significant digits of a positive value, and the power of ten for which the first digit stands."""
    if value >= _EXACT_FROM[single]:
        return _inside(value, single=single)
    text = np.format_float_scientific(np.float32(value), trim="-") if single else f"{value!r}"
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    leading = len(digits) - len(digits.lstrip("0"))
    return digits.strip("0"), int(exponent or 0) + len(whole) - 1 - leading


def _inside(value: float, *, single: bool) -> tuple[str, int]:
    """Does the work of `_shortest` for a large value. Of all integers between the two midpoints, takes the one with the
    fewest significant digits; if there are several, the nearest one.
    """
    mantissa, exponent = math.frexp(value)
    above = 1 << exponent - _BITS[single]
    below = above // 2 if mantissa == 0.5 else above
    exact = int(value)
    for power in range(len(str(exact)) - 1, -1, -1):
        step = 10**power
        low = exact // step * step
        fitting = [near for near in (low, low + step) if (exact - near) * 2 < below and (near - exact) * 2 < above]
        if fitting:
            text = str(min(fitting, key=lambda near: (abs(near - exact), near // step % 2)))
            return text.rstrip("0"), len(text) - 1
    raise AssertionError("the value itself is an integer between the midpoints")


def _written(digits: str, exponent: int, *, single: bool) -> str:
    if not _FIXED_FROM <= exponent < _FIXED_BELOW[single]:
        point = "." if len(digits) > 1 else ""
        return f"{digits[0]}{point}{digits[1:]}e{exponent:+03d}"
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{whole}.{fraction}" if fraction else whole
