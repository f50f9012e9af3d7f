"""The id by which a run is shown: short, and without its key.

A run is addressed by its space, which spells the key: an order number, a mail address. Stored references, and the ids
of older releases, are that space in base64 (`claim.run_id`); they stay valid. What people and programs see is a digest.
The way back is the index of `run_index`.
"""

from __future__ import annotations

from hashlib import sha256

from ..errors import Misuse
from ..records import Address
from .claim import RUN, RUN_ID, SELF, run_id, space_of_run

__all__ = ["INDEX", "RUN_POINTER", "index_address", "is_short_id", "short_id", "shown_id", "shown_run"]


RUN_POINTER = "runid"  # the kind of an index record
INDEX = "~runs"  # no tenant's own: a name has no tilde. Whose run it is, the record says
LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base32: no i, l, o, u
DIGEST_LETTERS = 20
# No base64 has a length of 1 modulo 4, so that no id of an older release has this one.
SHORT_LENGTH = len(RUN_ID) + DIGEST_LETTERS + 1
_PAIRS = [first + second for first in LETTERS for second in LETTERS]
_VALUES = bytes.maketrans(LETTERS.encode(), bytes(range(32)))
_DOUBLED = bytes.maketrans(bytes(range(32)), bytes(2 * value if value < 16 else 2 * value - 31 for value in range(32)))


def short_id(space: str) -> str:
    """Four letters of the SHA-256 of all but the end, sixteen (80 bits) of the whole, and a check letter.

    Keys that grow (order 1001, 1002, …) so share their first letters for a while: their index records are neighbours,
    and a commit of many touches a few pages of the database instead of one for each.
    """
    text = space.encode()
    hashed = sha256(text[:-2])
    head = hashed.digest()
    hashed.update(text[-2:])
    whole = hashed.digest()
    bits = (int.from_bytes(head[:3]) >> 4) << 80 | int.from_bytes(whole[:10])
    digest = "".join([_PAIRS[bits >> shift & 1023] for shift in range(90, -1, -10)])
    return f"{RUN_ID}{digest}{_check_letter(digest)}"


def _check_letter(digest: str) -> str:
    """Luhn's, modulo 32: it notices every single wrong letter, and nearly every two neighbours that are swapped."""
    values = digest.encode().translate(_VALUES)
    return LETTERS[-(sum(values[::2]) + sum(values[1::2].translate(_DOUBLED))) % 32]


def is_short_id(text: str) -> bool:
    """Whether it has the form of a short id. Whether there is such a run, only the index says."""
    if len(text) != SHORT_LENGTH or not text.startswith(RUN_ID):
        return False
    digest = text[len(RUN_ID) : -1]
    return set(digest) <= set(LETTERS) and text[-1] == _check_letter(digest)


def shown_id(at: Address) -> str:
    """Of a claim that is no run, the long id: it is settled by operation and key, and has no index record."""
    return short_id(at.space) if at.kind == RUN else run_id(at.space)


def shown_run(run: str) -> str:
    """The id to show for a stored reference to a run. What is none is shown as it is."""
    try:
        return short_id(space_of_run(run))
    except Misuse:
        return run


def index_address(short: str) -> Address:
    """Where the index record of a run is: in a space of its own, as a write covers one space."""
    return Address(f"{INDEX}/{short.removeprefix(RUN_ID)}", RUN_POINTER, SELF)
