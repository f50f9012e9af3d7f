"""One declared webhook: its source, secrets, flow and claim policy."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct, field

from ..claims.claim import validate_name
from ..claims.policy import Policy
from ..errors import ForgottenEarlyWarning, Misuse
from ..flows.flow import Flow
from ..keys.key import is_blank
from ..operations import Operation
from .source import Envelope, Event, Source

__all__ = [
    "DEFAULT_RETRY_SECONDS",
    "HOOK",
    "RECENT_SECONDS",
    "Hook",
    "HookShape",
    "OnFailed",
    "RecentRuns",
    "Secrets",
    "hook_shape",
    "operation_of",
    "secret_reader",
    "span",
    "validate_on_failed",
    "warn_if_forgotten_early",
]


RECENT_SECONDS = 5.0  # seconds
MOST = 10_000  # ids; the oldest is dropped first


class RecentRuns:
    """A per-process cache of runs that were seen done. A miss costs one read."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()

    def has(self, name: str, now: float) -> bool:
        seen = self._seen.get(name)
        return seen is not None and now - seen < RECENT_SECONDS

    def add(self, name: str, now: float) -> None:
        self._seen[name] = now
        self._seen.move_to_end(name)
        if len(self._seen) > MOST:
            self._seen.popitem(last=False)


OnFailed = Literal["retry", "keep"]
DEFAULT_RETRY_SECONDS = 1.0  # seconds after which a sender may retry an event that is being admitted

Secrets = Callable[[], Sequence[str]]
MakeInput = Callable[[Any], Any]


class Hook(Struct, frozen=True):
    """A declared webhook. Secrets are read for each delivery, so that they can be rotated, and never stored."""

    name: str
    source: Source
    secrets: Secrets
    flow: Flow
    policy: Policy  # of the claims on its events
    make: MakeInput | None = (
        None  # maps an event's payload to the flow's input; if it returns None, the event is ignored
    )
    wait: float | None = None  # seconds that the reply waits for the run's end; None: it does not wait
    on_failed: OnFailed = "retry"
    redact: tuple[str, ...] = ()
    recent_runs: RecentRuns = field(default_factory=RecentRuns)  # runs seen done a moment ago
    admission: Callable[..., Any] | None = None  # what admits its events, if not `Admission`
    latest: Callable[[Hook, str], Operation[Hook | None]] | None = None  # as a tenant's live release of the flow has it

    @property
    def target(self) -> str:
        """What its events start; duplicates are counted under it."""
        return self.flow.name

    def live(self, tenant: str) -> Operation[Hook | None]:
        """Return the hook as the tenant's live release of its flow has it; None if that has no such trigger."""
        return self if self.latest is None else (yield from self.latest(self, tenant))

    def arguments(self, event: Event, envelope: Envelope) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the flow's arguments: one parameter gets the whole value, several get its fields. None: ignore it."""
        given = event.payload if self.make is None else self.make(event.payload)
        if given is None and self.make is not None:
            return None
        whole = len(self.flow.inputs.names) == 1 or not isinstance(given, dict)
        return ((given,), {}) if whole else ((), given)


class HookShape(Struct, frozen=True, kw_only=True):
    """What is declared of a webhook; its secrets are never shown. Times are in seconds.

    `deadline`: how soon the sender wants a reply. `retry_window`: how long it repeats an event. `keep`: how long the
    event is recognised as a duplicate, null for ever; if that is shorter, it is not `kept_long_enough`. Without
    `secret_set`, deliveries of a sender that signs are refused.
    """

    name: str
    path: str
    source: str
    flow: str
    signed: bool
    deadline: float
    retry_window: float
    keep: float | None
    kept_long_enough: bool
    secret_set: bool


def hook_shape(hook: Hook) -> HookShape:
    keep, source = hook.policy.life.keep, hook.source
    return HookShape(
        name=hook.name,
        path=f"/hooks/{hook.name}",
        source=source.name,
        flow=hook.target,
        signed=source.signed,
        deadline=source.deadline,
        retry_window=source.retry_window,
        keep=keep,
        kept_long_enough=keep is None or keep >= source.retry_window,
        secret_set=any(hook.secrets()),
    )


def secret_reader(secret: str | Collection[str] | Secrets, source: Source) -> Secrets:
    """Return a function that reads the secrets, after checking those that are given as text."""
    if callable(secret):
        return lambda: _current(secret)
    given = (secret,) if isinstance(secret, str) else tuple(secret or ())
    if not all(isinstance(one, str) for one in given):  # iterating bytes gives numbers
        raise Misuse(f"The secret of {source.name} is not text; give a str, several, or env(…).")
    if source.signed and not all(given or [""]):
        raise Misuse(f'{source.name} signs what it sends; give its secret: secret=env("{source.name.upper()}_SECRET").')
    if any(is_blank(one) for one in given):  # anyone can sign with spaces
        raise Misuse(f"A secret of {source.name} is blank; copy it again from the sender, or leave it out.")
    return lambda: given


def _current(read: Secrets) -> tuple[str, ...]:
    """Return the function's secrets without blank ones. A single string is one secret, not one per character."""
    found = read()
    return tuple(one for one in ((found,) if isinstance(found, str) else found) if not is_blank(one))


HOOK = "hook."  # begins the operation of a webhook's events


def operation_of(name: str) -> str:
    """Return the operation name for the claims on a hook's events."""
    return HOOK + validate_name("webhook", name)


def validate_on_failed(value: OnFailed) -> OnFailed:
    if value not in get_args(OnFailed):
        raise Misuse(f"on_failed={value!r} is not known; use one of {', '.join(get_args(OnFailed))}.")
    return value


def warn_if_forgotten_early(source: Source, keep: float | None, *, name: str = "", depth: int = 3) -> None:
    """Warn if claims expire within the sender's retry window: a later retry would be processed as a new event.

    `keep` is in seconds, None for ever. `depth` is the stack level of the line to be changed.
    """
    if keep is not None and keep < source.retry_window:
        warnings.warn(
            f"{name or source.name} retries for {span(source.retry_window)}, but its events are forgotten after "
            f"{span(keep)}: a later retry would be processed twice. Use keep={span(source.retry_window)!r} or more.",
            ForgottenEarlyWarning,
            stacklevel=depth,
        )


def span(seconds: float) -> str:
    """Format a duration as `keep=` takes it, rounded up."""
    for unit, sign in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{-(-seconds // unit):.0f}{sign}"
    return f"{seconds:g}s"
