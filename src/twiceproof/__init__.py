"""Twiceproof: run it twice, it happens once. Names are loaded when they are first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .app import App
    from .claims.outcomes import Busy, Done, Failed, Held, InReview, Mismatch
    from .effects.look import Absent, Happened, Unknown
    from .errors import (
        Cancelled,
        ClaimError,
        ClaimLost,
        Duplicate,
        FlowError,
        InProgress,
        KeyRefused,
        Misuse,
        NeedsReview,
        NotDone,
        PayloadMismatch,
        PriorFailure,
        ResultNotKept,
        ResultTypeWarning,
        StepFailed,
        StoreError,
        StoreFull,
        StoreUnavailable,
        StoreUnsafe,
        TwiceproofError,
        TwiceproofWarning,
        UnstableKeyWarning,
        ValueRefused,
        Waiting,
        WaitSwallowed,
    )
    from .flows.repeat import check, keyed
    from .flows.retry import Retry
    from .keys import body_hash, composite, fingerprint, stage, windowed

__all__ = [
    "Absent",
    "App",
    "Busy",
    "Cancelled",
    "ClaimError",
    "ClaimLost",
    "Done",
    "Duplicate",
    "Failed",
    "FlowError",
    "Happened",
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
    "Retry",
    "StepFailed",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "StoreUnsafe",
    "TwiceproofError",
    "TwiceproofWarning",
    "Unknown",
    "UnstableKeyWarning",
    "ValueRefused",
    "WaitSwallowed",
    "Waiting",
    "__version__",
    "body_hash",
    "check",
    "composite",
    "fingerprint",
    "keyed",
    "stage",
    "windowed",
]

_HOMES = {
    ".app": ("App",),
    ".claims.outcomes": ("Busy", "Done", "Failed", "Held", "InReview", "Mismatch"),
    ".effects.look": ("Absent", "Happened", "Unknown"),
    ".flows.repeat": ("check", "keyed"),
    ".flows.retry": ("Retry",),
    ".keys": ("body_hash", "composite", "fingerprint", "stage", "windowed"),
}


def __getattr__(name: str) -> Any:
    """The command line asks for its own version in less time than the whole package takes to load."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), ".errors")
    value = globals()[name] = getattr(import_module(home, __name__), name)
    return value
