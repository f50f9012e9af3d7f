"""Twiceproof: run it twice, it happens once. Names are loaded when they are first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .app.app import App
    from .claims.claim import Busy, Done, Failed, Held, InReview, Mismatch
    from .declared.flow_files import load_flows
    from .effects.base import Absent, Happened, Unknown
    from .effects.duplicate_alerts import Notice, to_email, to_log, to_webhook
    from .effects.providers import provider
    from .effects.repeat import Retry, check, keyed
    from .errors import (
        BatchFailed,
        BrokerUnavailable,
        Cancelled,
        CannotOpen,
        ClaimError,
        ClaimLost,
        Duplicate,
        FlowError,
        ForgottenEarlyWarning,
        InProgress,
        KeyRefused,
        Misuse,
        NeedsReview,
        NoSuchWait,
        NotDone,
        OutcomeUnknown,
        OwnRequest,
        PayloadMismatch,
        PriorFailure,
        Rejected,
        ResultNotKept,
        ResultTypeWarning,
        Stale,
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
        WaitTimedOut,
    )
    from .flows.ordering.declaration import by
    from .flows.parallel.each import ItemDone, ItemFailed
    from .flows.resources import Resource
    from .flows.triggers.poll import Polled
    from .flows.waits.records import Approval, Decided, Decision, Delivered
    from .flows.workers.log import RunFilter
    from .keys import body_hash, composite, fingerprint, stage, windowed
    from .outbox.routing import webhook
    from .outbox.sending import SentMessage
    from .secret import env

__all__ = [
    "Absent",
    "App",
    "Approval",
    "BatchFailed",
    "BrokerUnavailable",
    "Busy",
    "Cancelled",
    "CannotOpen",
    "ClaimError",
    "ClaimLost",
    "Decided",
    "Decision",
    "Delivered",
    "Done",
    "Duplicate",
    "Failed",
    "FlowError",
    "ForgottenEarlyWarning",
    "Happened",
    "Held",
    "InProgress",
    "InReview",
    "ItemDone",
    "ItemFailed",
    "KeyRefused",
    "Mismatch",
    "Misuse",
    "NeedsReview",
    "NoSuchWait",
    "NotDone",
    "Notice",
    "OutcomeUnknown",
    "OwnRequest",
    "PayloadMismatch",
    "Polled",
    "PriorFailure",
    "Rejected",
    "Resource",
    "ResultNotKept",
    "ResultTypeWarning",
    "Retry",
    "RunFilter",
    "SentMessage",
    "Stale",
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
    "WaitTimedOut",
    "Waiting",
    "__version__",
    "body_hash",
    "by",
    "check",
    "composite",
    "env",
    "fingerprint",
    "keyed",
    "load_flows",
    "provider",
    "stage",
    "to_email",
    "to_log",
    "to_webhook",
    "webhook",
    "windowed",
]


_HOMES = {
    ".app.app": ("App",),
    ".claims.claim": (
        "Busy",
        "Done",
        "Failed",
        "Held",
        "InReview",
        "Mismatch",
    ),
    ".declared.flow_files": ("load_flows",),
    ".effects.base": (
        "Absent",
        "Happened",
        "Unknown",
    ),
    ".effects.duplicate_alerts": (
        "Notice",
        "to_email",
        "to_log",
        "to_webhook",
    ),
    ".effects.providers": ("provider",),
    ".flows.ordering.declaration": ("by",),
    ".flows.parallel.each": (
        "ItemDone",
        "ItemFailed",
    ),
    ".effects.repeat": (
        "Retry",
        "check",
        "keyed",
    ),
    ".flows.resources": ("Resource",),
    ".flows.triggers.poll": ("Polled",),
    ".flows.waits.records": (
        "Approval",
        "Decided",
        "Decision",
        "Delivered",
    ),
    ".flows.workers.log": ("RunFilter",),
    ".keys": (
        "body_hash",
        "composite",
        "fingerprint",
        "stage",
        "windowed",
    ),
    ".outbox.routing": ("webhook",),
    ".outbox.sending": ("SentMessage",),
    ".secret": ("env",),
}


def __dir__() -> list[str]:
    """What is for users, loaded or not: prompts and editors offer it."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    """The command line asks for its own version in less time than the whole package takes to load."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), ".errors")
    value = globals()[name] = getattr(import_module(home, __name__), name)
    return value
