"""A number's one text: plain decimal digits, never an exponent, so that equal numbers read alike.

A float stands for its shortest decimal text, as in JSON and RFC 8785: `0.1`, `Decimal("0.10")` and the
`0.1` of a request's body are one number, and `1.0` is `1`. Above 2**53 a float is the number JavaScript
would print for it, which need not be the integer Python would convert it to.
"""

from __future__ import annotations

from decimal import Decimal

__all__ = ["MOST_DIGITS", "decimal_text", "float_text", "int_text"]

MOST_DIGITS = 5_000  # written out, Decimal("1E+999999999") would fill the memory


def int_text(number: int) -> str:
    try:
        return int.__repr__(number)
    except ValueError:  # Python refuses to print more than 4,300 digits; Decimal does not
        return format(Decimal(number), "f")


def float_text(number: float) -> str:
    """Raises ValueError for NaN and infinity."""
    text = float.__repr__(number)  # not repr(): NumPy's floats are floats, and print as np.float64(0.1)
    if "e" in text or "n" in text:
        return decimal_text(Decimal(text))
    text = text.removesuffix(".0")
    return "0" if text == "-0" else text


def decimal_text(number: Decimal) -> str:
    """Raises ValueError for NaN and infinity, and for what would take more than MOST_DIGITS digits."""
    if not number.is_finite():
        raise ValueError("NaN and infinity are no numbers in JSON")
    if number.is_zero():
        return "0"
    if abs(number.adjusted()) > MOST_DIGITS:
        raise ValueError(f"it has more than {MOST_DIGITS} digits written out")
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
