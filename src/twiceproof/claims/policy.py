"""How an operation treats its claims: the options of `@app.once`, validated."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Literal, TypeVar, get_args

from msgspec import Struct

from ..errors import Misuse
from ..keys.duration import lifetime, seconds
from .claim import validate_name
from .error_classification import NotDoneErrors, as_not_done
from .states import Lifetime

__all__ = [
    "DEFAULT_LEASE",
    "LONGEST_LEASE",
    "Duration",
    "OnDuplicate",
    "OnFailure",
    "OnLarge",
    "Policy",
    "Repeat",
    "SettleVerdict",
    "lease_for",
    "make_policy",
]


OnDuplicate = Literal["return_prior", "wait", "reject"]
OnFailure = Literal["keep", "release"]
OnLarge = Literal["spill", "digest"]
Repeat = Literal["never", "safe"]
SettleVerdict = Literal["happened", "did-not-happen", "abandon"]
Duration = str | float | timedelta

W = TypeVar("W", bound=str)

DEFAULT_LEASE = 30.0
DEFAULT_KEEP = "30d"
INTERVALS = 3  # that a lease of periodic work lasts
SHORTEST_LEASE, LONGEST_LEASE = 5.0, 300.0  # seconds, of periodic work


def lease_for(interval: float) -> float:
    """Return for how many seconds work that is due every `interval` seconds is held."""
    return min(max(SHORTEST_LEASE, INTERVALS * interval), LONGEST_LEASE)


class Policy(Struct, frozen=True):
    """The settings of one operation: two functions on one store keep their own."""

    operation: str
    tenant: str = "default"
    on_duplicate: OnDuplicate = "return_prior"
    on_failure: OnFailure = "keep"
    repeat: Repeat = "never"
    large: OnLarge = "spill"
    lease: float = DEFAULT_LEASE
    life: Lifetime = Lifetime()
    ignore: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    not_done: tuple[type[BaseException], ...] = ()


def make_policy(
    operation: str,
    *,
    tenant: str = "default",
    on_duplicate: OnDuplicate = "return_prior",
    on_failure: OnFailure = "keep",
    repeat: Repeat = "never",
    large: OnLarge = "spill",
    lease: Duration = DEFAULT_LEASE,
    keep: Duration = DEFAULT_KEEP,
    keep_result: Duration | None = None,
    keep_failed: Duration | None = None,
    ignore: Collection[str] = (),
    where: tuple[str, ...] = (),
    not_done: NotDoneErrors = (),
) -> Policy:
    kept = lifetime(keep, name="keep")
    return Policy(
        validate_name("operation", operation),
        validate_name("tenant", tenant),
        _one_of("on_duplicate", on_duplicate, get_args(OnDuplicate)),
        _one_of("on_failure", on_failure, get_args(OnFailure)),
        _one_of("repeat", repeat, get_args(Repeat)),
        _one_of("large", large, get_args(OnLarge)),
        seconds(lease, name="lease"),
        Lifetime(
            kept,
            None if keep_result is None else lifetime(keep_result, name="keep_result"),
            kept if keep_failed is None else lifetime(keep_failed, name="keep_failed"),
        ),
        (ignore,) if isinstance(ignore, str) else tuple(ignore),
        where,
        as_not_done(not_done),
    )


def _one_of(name: str, value: W, legal: tuple[str, ...]) -> W:
    if value not in legal:
        raise Misuse(f"{name}={value!r} is not valid; use one of {', '.join(map(repr, legal))}.")
    return value
