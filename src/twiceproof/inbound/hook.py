"""Hook: one webhook address; horizon warning; recent-runs cache."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct, field, structs

from ..claims.claim import validate_name
from ..claims.policy import Policy
from ..errors import ForgottenEarlyWarning, Misuse
from ..flows.flow import Flow
from .source import Event, Source

__all__ = [
    "AGAIN",
    "SPAN",
    "Hook",
    "OnFailed",
    "RecentRuns",
    "Secrets",
    "checked",
    "operation_of",
    "warn_if_forgotten_early",
]


SPAN = 5.0  # seconds
MOST = 10_000  # names; the oldest is forgotten first


class RecentRuns:
    """In this process' memory. To forget costs a look, and nothing else."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()

    def has(self, name: str, now: float) -> bool:
        seen = self._seen.get(name)
        return seen is not None and now - seen < SPAN

    def add(self, name: str, now: float) -> None:
        self._seen[name] = now
        self._seen.move_to_end(name)
        if len(self._seen) > MOST:
            self._seen.popitem(last=False)


OnFailed = Literal["retry", "keep"]
AGAIN = 1.0  # seconds after which a sender may come back to an event that is being admitted

Secrets = Callable[[], Sequence[str]]
Making = Callable[[Any], Any]


class Hook(Struct, frozen=True):
    """One declaration. Secrets are asked for at each delivery, so that they can be rotated; they are never kept."""

    name: str
    source: Source
    secrets: Secrets
    flow: Flow
    policy: Policy  # of the claims on its events
    make: Making | None = None  # from an event's payload to what the flow is given; None from it: nothing to do
    wait: float | None = None  # seconds for which the answer waits for the run's end; None: it does not
    on_failed: OnFailed = "retry"
    redact: tuple[str, ...] = ()
    lately: RecentRuns = field(default_factory=RecentRuns)  # runs that were done a moment ago

    def of(self, tenant: str) -> Hook:
        """The same hook for another tenant: its events and runs are apart."""
        if tenant == self.policy.tenant:
            return self
        return structs.replace(self, flow=self.flow.of(tenant), policy=structs.replace(self.policy, tenant=tenant))

    def arguments(self, event: Event) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """For the flow: passed whole to a single parameter, otherwise spread by name. None: nothing to do."""
        given = event.payload if self.make is None else self.make(event.payload)
        if given is None and self.make is not None:
            return None
        whole = len(self.flow.inputs.names) == 1 or not isinstance(given, dict)
        return ((given,), {}) if whole else ((), given)


def operation_of(name: str) -> str:
    """What a hook's events are claimed under."""
    return f"hook.{validate_name('webhook', name)}"


def checked(word: OnFailed) -> OnFailed:
    if word not in get_args(OnFailed):
        raise Misuse(f"on_failed={word!r} means nothing here; say one of {', '.join(get_args(OnFailed))}.")
    return word


def warn_if_forgotten_early(source: Source, keep: float | None, *, name: str = "", depth: int = 3) -> None:
    """An event that comes again after it was forgotten is a new one. `keep` in seconds; None is for ever.

    `depth` is how far above this call the line stands that is to be changed.
    """
    if keep is not None and keep < source.horizon:
        warnings.warn(
            f"{name or source.name} may come again for {_span(source.horizon)}, and its events are forgotten after "
            f"{_span(keep)}: what comes later is done twice. Say keep={_span(source.horizon)!r} or more.",
            ForgottenEarlyWarning,
            stacklevel=depth,
        )


def _span(seconds: float) -> str:
    """As `keep=` takes it, never shorter."""
    for unit, sign in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{-(-seconds // unit):.0f}{sign}"
    return f"{seconds:g}s"
