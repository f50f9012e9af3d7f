"""`app.send` in a flow, in a step, in a step's transaction, and outside of runs.

- In a flow's body the message is one more write of the ledger's next commit, in the run's own space. With `key=` or
  `order=` it has a space of its own, and is written before its entry: a replay finds it by its key.
- In a step it is written with the step's completion: an attempt that fails sends nothing.
- Under @app.transaction it is written in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct

from ..claims.claim import shown_run
from ..errors import Misuse
from ..operations import Operation, await_, block
from ..outbox.message import MESSAGE_KIND, Message, insert_message
from ..outbox.sending import MessageOrigin, Sending, SentMessage, make_messages, write_messages
from ..records import Address, Insert
from .engine.context import Attempt, current_attempt, current_session, is_on_loop, session_var
from .engine.ledger import STEP_DONE, EntryNote
from .engine.step_identity import arguments_digest, effect_key

if TYPE_CHECKING:
    from ..outbox.routing import Routing
    from ..stores.user_transaction import Join
    from .engine.session import Session
    from .runtime import Runtime

__all__ = ["OutgoingDraft", "in_transaction", "inserts_of", "minted_key", "origin_of", "send"]


class OutgoingDraft(Struct, frozen=True):
    """A message of a step that has not completed yet. `own`: it lies in the run's space."""

    message: Message
    delay: float
    own: bool


def minted_key() -> str:
    return f"tp_{uuid4().hex}"


def origin_of(parts: Runtime) -> MessageOrigin:
    """Return where a message comes from, with the headers that lead back to it."""
    from .effect_step import outgoing_context

    session = session_var.get()
    run = shown_run(session.claim.run) if session is not None and session.open else ""
    return MessageOrigin(f"twiceproof/{parts.tenant}", run, outgoing_context())


def send(parts: Runtime, routing: Routing, given: Sending) -> Any:
    """Send a message from wherever the caller is. Awaited in an `async def` flow, and on an event loop outside."""
    attempt = current_attempt()
    if attempt is not None:
        return _from_step(parts, routing, given, attempt)
    session = current_session()
    if session is not None:
        return session.do(_from_flow(session, routing, given), names=("send",))
    work = _alone(parts, routing, given)
    return await_(work) if is_on_loop() else block(work)


def _alone(parts: Runtime, routing: Routing, given: Sending) -> Operation[SentMessage]:
    if given.key is None:
        raise Misuse(
            'app.send outside of a flow needs a key: app.send(topic, body, key="order:17:paid"). To send with your own '
            "rows, use `with app.outbox(connection) as outbox`."
        )
    messages = make_messages(routing, given, given.key, origin_of(parts))
    return (yield from write_messages(parts.store, parts.tenant, messages, given.due_in))


# -- in a flow's body ----------------------------------------------------------------------------


def _from_flow(session: Session, routing: Routing, given: Sending) -> Operation[SentMessage]:
    name = session.name_for(f"send:{given.topic}")
    key = given.key if given.key is not None else effect_key(session.space, name)
    messages = make_messages(routing, given, key, origin_of(session.parts))
    asked = arguments_digest({"body": messages[0].digest, "order": given.order, "key": given.key})
    entry = session.visit(name, asked)
    if entry is not None:
        return msgspec.json.decode(entry.note.result, type=SentMessage)
    session.refuse_if_undoing()
    session.refuse_unvisited(name)
    sent = SentMessage(key, tuple(message.target for message in messages))
    own: Sequence[Insert] = ()
    if given.key is None and given.order is None:
        own = _own_inserts(session, messages, given.due_in)
    else:  # what came before must be recorded, and the run be ours, before others can see the message
        yield from session.ledger.flush()
        sent = yield from write_messages(session.parts.store, session.parts.tenant, messages, given.due_in)
    session.finished(name, STEP_DONE, EntryNote(asked, result=Raw(msgspec.json.encode(sent))), *own)
    return sent


def _own_inserts(session: Session, messages: Sequence[Message], delay: float) -> list[Insert]:
    """Return writes in the run's own space. A later run of the same key has addresses of its own."""
    born = session.work.start_id
    return [
        insert_message(Address(session.space, MESSAGE_KIND, f"{each.key}:{born}:{each.target}"), each, delay)
        for each in messages
    ]


# -- in a step -----------------------------------------------------------------------------------


def _from_step(parts: Runtime, routing: Routing, given: Sending, attempt: Attempt) -> Any:
    """Keep the message until the step completes. There is nothing to wait for, also in an `async def` step."""
    session = session_var.get()
    step = session.calls.get(attempt.step) if session is not None else None
    if session is None or step is None or not attempt.starts:
        raise Misuse("app.send was called from a probe or an undo that has ended; send from the flow or a step.")
    joined = step.step.transaction is not None
    if not joined and (given.key is not None or given.order is not None):
        raise Misuse(
            "In a step, a message is written with the step's completion, and has the step's own key; send with key= "
            "or order= in the flow's body, or under @app.transaction."
        )
    nth = sum(draft.message.topic == given.topic for draft in attempt.outgoing) + 1
    key = given.key if given.key is not None else effect_key(attempt.space, f"{attempt.step}/send:{given.topic}#{nth}")
    messages = make_messages(routing, given, key, origin_of(parts))
    own = given.key is None and given.order is None
    attempt.outgoing.extend(OutgoingDraft(message, given.due_in, own) for message in messages)
    sent = SentMessage(key, tuple(message.target for message in messages))
    return _SentNow(sent) if step.step.is_async else sent


class _SentNow:
    """For an `async def` step: may be awaited like every other call, and need not be."""

    def __init__(self, sent: SentMessage) -> None:
        self.key, self.targets, self.earlier = sent.key, sent.targets, sent.earlier
        self._sent = sent

    def __await__(self) -> Any:
        yield from ()
        return self._sent


def inserts_of(session: Session, drafts: Sequence[OutgoingDraft]) -> list[Insert]:
    """Return the writes that go with the completion of a step."""
    return [insert for draft in drafts if draft.own for insert in _own_inserts(session, [draft.message], draft.delay)]


def in_transaction(join: Join, tenant: str, drafts: Sequence[OutgoingDraft]) -> Operation[None]:
    """Write the other messages of a step in its transaction."""
    from ..outbox.transaction_outbox import land_messages

    others = [(draft.message, draft.delay) for draft in drafts if not draft.own]
    if others:
        yield from land_messages(join, tenant, others)
