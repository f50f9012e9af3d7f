"""Webhooks whose events are given to a function under `@app.once`: without runs, so that any store carries them."""

from __future__ import annotations

import logging
from typing import Any

from msgspec import structs

from ..claims.claim import Done
from ..claims.held_claim import ClaimScope
from ..errors import Duplicate, InProgress, Misuse, NeedsReview, PayloadMismatch, StoreError
from ..operations import InThread, Operation, block
from .admit import Admission, Admitted, EventNote, refused
from .hook import DEFAULT_RETRY_SECONDS, Hook
from .redaction import redact
from .source import Envelope, Event

__all__ = ["OnceAdmission", "OnceHook"]


log = logging.getLogger("twiceproof.inbound")


class OnceHook(Hook, frozen=True):
    """A webhook whose events are given to a function under `@app.once`, which is called before the answer."""

    once: Any = None  # the function's claims

    @property
    def target(self) -> str:
        return str(self.once.policy.operation)

    def arguments(self, event: Event, envelope: Envelope) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        given = event.payload if self.make is None else self.make(event.payload)
        if given is None and self.make is not None:
            return None
        names = self.once.claim_requests.arguments.signature.parameters
        return ((given,), {}) if len(names) == 1 or not isinstance(given, dict) else ((), given)


class OnceAdmission(Admission):
    """Claims the event's id and calls the hook's guarded function. Only what ended well keeps the id's claim: a
    redelivery of anything else asks the function's own claim again."""

    hook: OnceHook

    def _start_run(self, event: Event, scope: ClaimScope) -> Operation[Admitted]:
        try:
            arguments = self.hook.arguments(self._redacted(event), self.envelope)
            if arguments is not None:
                yield from scope.begin()
                yield from InThread(lambda: block(self.hook.once.call(*arguments, tenant=self.tenant)))
        except Exception as error:  # noqa: BLE001 - each error is an outcome
            scope.end()
            yield from scope.release()
            return self._outcome_of_error(error)
        scope.end()
        yield from self._complete(scope, EventNote("", event.type, event.delivery, event.attempt))
        return Admitted("new")

    def _redacted(self, event: Event) -> Event:
        paths = self.hook.redact
        return structs.replace(event, payload=redact(event.payload, paths)) if paths else event

    def _outcome_of_error(self, error: Exception) -> Admitted:
        if isinstance(error, StoreError):
            raise error
        if isinstance(error, InProgress):
            return Admitted("busy", retry_in=DEFAULT_RETRY_SECONDS)
        if isinstance(error, NeedsReview):
            return Admitted("review")
        if isinstance(error, Duplicate):
            return Admitted("duplicate")
        if isinstance(error, PayloadMismatch | Misuse | TypeError):
            return refused(error)
        log.error("%s: %s failed: %s", self.hook.name, self.hook.target, type(error).__name__)
        return Admitted("failed", reason=f"{type(error).__name__}: {error}")

    def _redelivered(self, done: Done) -> Operation[Admitted]:
        yield from ()
        return Admitted("duplicate")
