"""Replaying a letter: a delivery that was kept aside is read again, when whatever stood in its way is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..drive import Operation
from ..errors import Misuse
from ..flows.parts import Parts
from .admission import Admission, Admitted
from .envelope import Envelope
from .hook import Hook
from .letter_events import name_of, read_events
from .letters import Letter, body_of_letter, find_letter, strike
from .source import Event, Handshake, Poison

__all__ = ["replay_letter"]

TAKEN_IN = ("new", "duplicate", "review")


def replay_letter(parts: Parts, hooks: Mapping[str, Hook], name: str) -> Operation[list[Admitted]]:
    """It was believed when it came; what is claimed and started is the same as then."""
    letter = yield from find_letter(parts.store, parts.tenant, name)
    hook, body = _hook(hooks, letter), (yield from body_of_letter(parts.store, letter))
    admission = Admission(parts, hook, Envelope(letter.hook, body, letter.headers, letter.tenant, letter.received_at))
    reading = read_events(body) if letter.redacted else hook.source.read(admission.envelope)
    if isinstance(reading, Handshake | Poison):
        reason = reading.reason if isinstance(reading, Poison) else "it is a handshake"
        raise Misuse(
            f"{letter.id} still cannot be read: {reason}. Correct the source's options, or leave it to expire."
        )
    admitted = yield from admission.each(_meant(letter, reading))
    if letter.meant or all(one.word in TAKEN_IN for one in admitted):
        yield from strike(parts.store, letter, _left(letter, admitted))
    return admitted


def _left(letter: Letter, admitted: Sequence[Admitted]) -> list[str]:
    """Also what its source does not find in it any more."""
    taken = {one.event for one in admitted if one.word in TAKEN_IN}
    taken -= {one.event for one in admitted if one.word not in TAKEN_IN}
    return [name for name in letter.meant if name not in taken]


def _meant(letter: Letter, reading: Sequence[Event | Poison]) -> Sequence[Event | Poison]:
    if not letter.meant:
        return reading
    found = [one for one in reading if isinstance(one, Event) and name_of(one) in letter.meant]
    if not found:  # where nothing is taken in, nothing went wrong, and the letter would be removed
        raise Misuse(
            f"{letter.id} has no event {letter.meant[0][:80]!r} any more, as its source now reads it. Correct the "
            "source's options, or leave it to expire."
        )
    return found


def _hook(hooks: Mapping[str, Hook], letter: Letter) -> Hook:
    if letter.hook not in hooks:
        raise Misuse(f"{letter.id} came in at {letter.hook!r}, which this app does not declare; name another app.")
    return hooks[letter.hook]
