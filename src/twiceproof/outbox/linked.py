"""Messages that land in one commit with the entries of a run, although they lie in spaces of their own.

Those of a run without a key or an order key of the user's lie in the run's space, and need none of this.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..errors import PayloadMismatch
from ..operations import Operation
from ..records import Address, Conflict, Write
from ..stores.base import Store
from .lanes import LaneState, after_conflict, append_writes, lane_address
from .message import Message, insert_message, message_of, refuse_other_payload
from .sending import address_of_message

__all__ = ["LinkedMessage", "LinkedMessages", "draft_of", "is_known"]


class LinkedMessage(Struct, frozen=True):
    """A message that is written with the entry of the call that sends it."""

    at: Address
    message: Message
    delay: float


def is_known(store: Store, draft: LinkedMessage) -> Operation[bool]:
    """Whether the message was sent before. Raises PayloadMismatch if another one was, under its key."""
    found = (yield from store.read(draft.at)).record
    if found is not None:
        refuse_other_payload(message_of(found), draft.message)
    return found is not None


class LinkedMessages:
    """The messages of one commit. Their writes are made anew after each conflict with one of them: the lane's number is
    the one that the commit finds, whoever else sends meanwhile.
    """

    def __init__(self, tenant: str, drafts: Sequence[LinkedMessage]) -> None:
        self._drafts: dict[Address, LinkedMessage] = {}
        self._lanes: dict[Address, LaneState] = {}
        for draft in drafts:
            _compare(self._drafts.setdefault(draft.at, draft).message, draft)
            if draft.message.order:
                self._lanes[lane_address(tenant, draft.message.target, draft.message.order)] = LaneState()

    def writes(self) -> list[Write]:
        """Return what to write, space by space."""
        writes: list[Write] = [
            insert_message(at, draft.message, draft.delay)
            for at, draft in self._drafts.items()
            if not draft.message.order
        ]
        for lane, known in self._lanes.items():
            messages = [draft.message for at, draft in self._drafts.items() if at.space == lane.space]
            if messages:
                writes += append_writes(lane, messages, known)
        return writes

    def take_in(self, conflict: Conflict) -> bool:
        """Adjust the writes to what was found. False: the conflict is not with one of them.

        Raises PayloadMismatch, which carries the `draft`, if another message was sent under its key meanwhile.
        """
        draft = self._drafts.get(conflict.at)
        if draft is not None:
            if conflict.found is not None:
                _compare(message_of(conflict.found), draft)
                del self._drafts[conflict.at]
            return True
        for lane, known in self._lanes.items():
            if conflict.at.space == lane.space:
                after = after_conflict(lane, conflict, known)
                assert isinstance(after, LaneState)  # noqa: S101 - the lane or a ticket
                self._lanes[lane] = after
                return True
        return False


def _compare(found: Message, draft: LinkedMessage) -> None:
    try:
        refuse_other_payload(found, draft.message)
    except PayloadMismatch as error:
        raise PayloadMismatch(str(error), **error.data, draft=draft) from None


def draft_of(tenant: str, message: Message, delay: float) -> LinkedMessage:
    return LinkedMessage(address_of_message(tenant, message), message, delay)
