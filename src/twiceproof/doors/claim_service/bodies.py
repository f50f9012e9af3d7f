"""What callers of the claim service send. A field that is not known is refused: a typing error must not go unseen."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ...errors import ValueRefused
from ...keys.duration import LONGEST
from ..patterns import KEEP, KEY_OR_NONE, LEASE, UUID_OR_NONE

__all__ = ["CompleteBody", "FailBody", "RenewBody", "TakeBody", "given"]

# Only told in descriptions: who writes it otherwise hears from us how durations are written, not of a pattern.
_SECONDS = Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": int(LONGEST)})
Seconds = Annotated[int, _SECONDS] | Annotated[float, _SECONDS]
Span = Annotated[str, Meta(extra_json_schema=LEASE)] | Seconds
Word = Annotated[str, Meta(extra_json_schema=KEY_OR_NONE)]
RequestId = Annotated[str, Meta(extra_json_schema=UUID_OR_NONE)]
Keep = Annotated[str, Meta(extra_json_schema=KEEP)] | Seconds


class TakeBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`payload` is what the fingerprint is made of, null too; left out, nothing is compared.

    `request_id`: a random UUID, drawn once for each request and the same whenever that request is sent again.
    """

    payload: Raw | UnsetType = UNSET
    lease: Span = "5m"
    repeat: Literal["never", "safe"] = "never"
    request_id: RequestId = ""
    link: Word = ""


class CompleteBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`keep` is how long the key is known: "30d", "forever"."""

    token: str
    result: Raw | UnsetType = UNSET
    keep: Keep | None = None


class FailBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`retryable`: the next one may try again. `unknown`: nobody knows whether it happened; a person must say."""

    token: str
    error: str = ""
    retryable: bool = True
    unknown: bool = False
    keep: Keep | None = None


class RenewBody(Struct, frozen=True, forbid_unknown_fields=True):
    token: str
    lease: Span = "5m"


def given(value: Raw | UnsetType) -> Raw:
    """Without the blanks between, as it will be told to every duplicate; nothing is null."""
    if isinstance(value, UnsetType):
        return Raw(b"null")
    try:
        msgspec.json.decode(value)  # a number without an end passes for JSON until somebody reads it
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueRefused(f"A value cannot be read back ({error}); send it as text.") from None
    return Raw(msgspec.json.format(bytes(value), indent=-1))
