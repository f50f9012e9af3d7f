"""The one way in: verify, read, claim, start or answer. Whatever the sender, the next lines are the same.

envelope → verify (raw bytes) → read (events) → claim each → start its flow → answer as this sender wants it
"""

from __future__ import annotations

import logging

from ..claims.aside import Aside
from ..drive import Operation
from ..errors import StoreError
from ..flows.parts import Parts
from .admission import Admission, Admitted
from .envelope import Envelope
from .hook import AGAIN, Hook
from .reply import Reply, problem
from .source import Handshake, Poison, Reading, Source, Word

__all__ = ["admit"]

log = logging.getLogger("twiceproof.doors")

# One answer for all events of a delivery: what must come again outweighs what need not.
WEIGHT: tuple[Word, ...] = ("unavailable", "busy", "failed", "new", "mismatch", "poison", "review", "duplicate")


def admit(parts: Parts, hook: Hook | None, envelope: Envelope) -> Operation[Reply]:
    """The answer for the sender. Nothing but a verified delivery touches the store."""
    if hook is None:
        return _unbelieved()
    greeting = hook.source.greet(envelope)
    if greeting is not None and not hook.source.greets_by_secret:
        return greeting.reply
    refusal = yield from _refusal(hook, envelope, parts)
    if refusal is not None or greeting is not None:
        return refusal or greeting.reply  # type: ignore[union-attr]
    try:
        return (yield from _believed(Admission(parts, hook, envelope)))
    except StoreError as error:
        log.error("%s: a delivery could not be taken in, its sender is asked to come again: %s", hook.name, error)
        return hook.source.answer("unavailable", retry_in=5 * AGAIN)


def _refusal(hook: Hook, envelope: Envelope, parts: Parts) -> Operation[Reply | None]:
    """What is not believed is not read. One that is too large is not even verified."""
    source = hook.source
    if len(envelope.body) > source.largest:
        return _too_large(source.largest)
    secrets, now = hook.secrets(), parts.clock.now()
    verify = Aside(lambda: source.verify(envelope, secrets, now))
    try:
        refused = (yield from verify) if source.waits else verify.block()
    except Exception:  # told from others, it would say which webhooks there are
        log.exception("%s: whether a delivery can be believed could not be found out", hook.name)
        return _unbelieved()
    if not refused:
        return None
    log.warning("%s: a delivery was not believed: %s", hook.name, refused)
    return _unbelieved()


def _believed(admission: Admission) -> Operation[Reply]:
    source = admission.hook.source
    reading = _read(source, admission.envelope)
    if isinstance(reading, Handshake):
        return reading.reply
    admitted = yield from admission.of([reading] if isinstance(reading, Poison) else reading)
    heaviest = min(admitted, key=lambda one: WEIGHT.index(one.word), default=Admitted("duplicate"))
    return source.answer(heaviest.word, run=heaviest.run, retry_in=heaviest.retry_in)


def _read(source: Source, envelope: Envelope) -> Reading:
    """A source of the user's own may mind no depth, and Python's JSON ends at some."""
    try:
        return source.read(envelope)
    except RecursionError:
        return Poison("its body is nested too deep to be read")


def _unbelieved() -> Reply:
    """The same for an unknown address and a wrong signature: nobody learns which addresses there are."""
    return problem(
        401, "not-believed", "There is no such webhook, or its signature does not fit.",
        next_move="Check the address, and that the sender's secret is the one that this server was given.",
    )  # fmt: skip


def _too_large(most: int) -> Reply:
    return problem(
        413, "too-large", f"A delivery may have {most:,} bytes.", next_move="Send a reference instead of the contents."
    )
