"""Values and keys that break programs, drawn at random: alone, or inside something harmless."""

from __future__ import annotations

import decimal
import math
import pickle
import random
import string
from collections.abc import Callable
from typing import Any

__all__ = ["DISTINCT", "KEPT", "KEYS", "NOT_KEPT", "REFUSED", "REFUSED_KEYS", "TWINS", "VALUES", "inside", "plain"]

Dice = random.Random
COMPOSED, APART = "\N{LATIN SMALL LETTER E WITH ACUTE}", "e\N{COMBINING ACUTE ACCENT}"
OURS = ["sealed:1:k:", "res://run_1/1", "{order}", "null"]


def word(dice: Dice) -> str:
    return "".join(dice.choices(string.ascii_letters, k=dice.randint(1, 8)))


def among(letter: str) -> Callable[[Dice], str]:
    """The letter within a word, or at its ends."""
    return lambda dice: word(dice)[: dice.randint(0, 4)] + letter + word(dice)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def within_itself(dice: Dice) -> Any:
    value: dict[str, Any] = {word(dice): 1}
    value["self"] = [value]
    return value


VALUES: dict[str, Callable[[Dice], Any]] = {
    "NUL": among("\0"),
    "NUL in a name": lambda dice: {among("\0")(dice): 1},
    "half a surrogate pair": lambda dice: among(chr(dice.randint(0xD800, 0xDFFF)))(dice),
    "half a surrogate pair in a name": lambda dice: {among("\ud800")(dice): 1},
    "NaN": lambda dice: math.nan,
    "infinity": lambda dice: dice.choice([math.inf, -math.inf]),
    "NaN of another kind": lambda dice: decimal.Decimal("NaN"),
    "around 2^63": lambda dice: dice.choice([1, -1]) * 2**63 + dice.randint(-2, 2),
    "beyond 2^64": lambda dice: 2**64 + dice.randint(0, 9),
    "5,000 digits": lambda dice: 10**5_000 + dice.randint(0, 9),
    "10,000 deep": lambda dice: nested(10_000 + dice.randint(0, 9)),
    "within itself": within_itself,
    "one megabyte": lambda dice: word(dice) * 2**17,
    "pickle": lambda dice: pickle.dumps({word(dice): 1}),
    "bytes": lambda dice: dice.randbytes(dice.randint(0, 40)),
    "names that fold into one": lambda dice: {"caf" + COMPOSED: 1, "caf" + APART: 2},
    "names of two kinds": lambda dice: {1: word(dice), "1": 2},
    "control characters": lambda dice: among(chr(dice.randint(1, 31)))(dice),
    "no characters": lambda dice: among(dice.choice("\uffff\ufffe\ufeff\U0010ffff"))(dice),
    "right to left": among("\N{RIGHT-TO-LEFT OVERRIDE}"),
    "an object": lambda dice: object(),
    "a set": lambda dice: {word(dice), word(dice)},
    "minus nothing": lambda dice: -0.0,
    "text that looks like ours": lambda dice: dice.choice(OURS) + word(dice),
    "nothing": lambda dice: dice.choice([None, "", [], {}]),
}
KEPT = {  # valid values: they must be accepted
    "NUL",
    "NUL in a name",
    "around 2^63",
    "one megabyte",
    "control characters",
    "no characters",
    "right to left",
    "text that looks like ours",
    "nothing",
    "minus nothing",
}
REFUSED = {  # values without a unique text
    "half a surrogate pair",
    "half a surrogate pair in a name",
    "NaN",
    "infinity",
    "10,000 deep",
    "within itself",
    "an object",
    "names that fold into one",
}
NOT_KEPT = REFUSED - {"names that fold into one"}  # as a result: JSON cannot express it

KEYS: dict[str, Callable[[Dice], Any]] = {
    "blank": lambda dice: dice.choice(["", " ", "\t", "\N{NO-BREAK SPACE}"]),
    "white space around": lambda dice: f" {word(dice)}",
    "NUL": among("\0"),
    "half a surrogate pair": among("\udfff"),
    "one megabyte": lambda dice: word(dice) * 2**17,
    "one byte too long": lambda dice: "x" * 1_025,
    "control characters": lambda dice: among(dice.choice("\n\r\x7f\x85\u2028"))(dice) + "!",
    "no text": lambda dice: dice.choice([None, math.nan, 17, b"key", ["key"], object()]),
    "just as long as may be": lambda dice: word(dice).ljust(1_024, "x"),
    "path": lambda dice: dice.choice(["../../etc/", "a/b/", "%2e%2e%2f", "//"]) + word(dice),
    "SQL": lambda dice: f"'; DROP TABLE twiceproof_records; --{word(dice)}",
    "pattern": lambda dice: dice.choice(["*", "%", "_", "{lane-1}", "[a-z]"]) + word(dice),
    "right to left": among("\N{RIGHT-TO-LEFT OVERRIDE}"),
}
REFUSED_KEYS = {
    "blank",
    "white space around",
    "NUL",
    "half a surrogate pair",
    "one megabyte",
    "one byte too long",
    "control characters",
    "no text",
}
TWINS = [  # two encodings of one text
    (f"caf{COMPOSED} ", f"caf{APART} "),
    ("\N{ANGSTROM SIGN}", "\N{LATIN CAPITAL LETTER A WITH RING ABOVE}"),
]
DISTINCT = [  # two texts that look alike
    ("Order", "order"),
    ("\N{LATIN SMALL LIGATURE FI}", "fi"),
    ("1", "01"),
    ("a:b", "a: b"),
    ("ss", "\N{LATIN SMALL LETTER SHARP S}"),
]


def inside(dice: Dice, value: Any) -> Any:
    """Return the value itself, or nested deep inside another one."""
    for _ in range(dice.randint(0, 4)):
        value = dice.choice([[value], [1, value, "x"], {word(dice): value}, {"a": None, word(dice) + "_": [value]}])
    return value


def plain(sentence: str) -> str:
    """Return a printable description of a poison value."""
    return sentence.encode("ascii", "backslashreplace").decode()
