"""Twiceproof: run it twice, it happens once. Names are loaded when they are first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .app import App
    from .claims.outcomes import Busy, Done, Failed, Held, InReview, Mismatch
    from .errors import (
        ClaimError,
        ClaimLost,
        Duplicate,
        InProgress,
        KeyRefused,
        Misuse,
        NeedsReview,
        NotDone,
        PayloadMismatch,
        PriorFailure,
        ResultNotKept,
        ResultTypeWarning,
        StoreError,
        StoreFull,
        StoreUnavailable,
        StoreUnsafe,
        TwiceproofError,
        TwiceproofWarning,
        UnstableKeyWarning,
        ValueRefused,
    )
    from .keys import body_hash, composite, fingerprint, stage, windowed

__all__ = [
    "App",
    "Busy",
    "ClaimError",
    "ClaimLost",
    "Done",
    "Duplicate",
    "Failed",
    "Held",
    "InProgress",
    "InReview",
    "KeyRefused",
    "Mismatch",
    "Misuse",
    "NeedsReview",
    "NotDone",
    "PayloadMismatch",
    "PriorFailure",
    "ResultNotKept",
    "ResultTypeWarning",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "StoreUnsafe",
    "TwiceproofError",
    "TwiceproofWarning",
    "UnstableKeyWarning",
    "ValueRefused",
    "__version__",
    "body_hash",
    "composite",
    "fingerprint",
    "stage",
    "windowed",
]

_HOMES = {
    ".app": ("App",),
    ".claims.outcomes": ("Busy", "Done", "Failed", "Held", "InReview", "Mismatch"),
    ".keys": ("body_hash", "composite", "fingerprint", "stage", "windowed"),
}


def __getattr__(name: str) -> Any:
    """The command line asks for its own version in less time than the whole package takes to load."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), ".errors")
    value = globals()[name] = getattr(import_module(home, __name__), name)
    return value
