"""`app.send` in a flow, in a step, in a step's transaction, and outside of runs.

- In a flow's body the message is one more write of the ledger's next commit, in the run's own space. With `key=` or
  `order=` it has a space of its own, to which the same commit writes.
- In a step it is written with the step's completion: an attempt that fails sends nothing.
- Where a store does not link spaces, or one commit has no room for it, a message with `key=` or `order=` is written
  just before its entry, in a commit of its own: if the process dies in between, the next attempt finds it by its key.
- A step that is not called again after it was cut off, because its outcome is looked up or settled, sends nothing then:
  of such a step the user is warned.
- Under @app.transaction it is written in the same transaction.
"""

from __future__ import annotations

import warnings
from base64 import b64decode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct, structs

from ..claims.claim import shown_run
from ..errors import Misuse, TwiceproofWarning
from ..operations import Operation, await_, block
from ..outbox.linked import LinkedMessage, draft_of, is_known
from ..outbox.message import JSON, MESSAGE_KIND, MOST_BODY, Message, insert_message, refuse_other_payload
from ..outbox.sending import MessageOrigin, Sending, SentMessage, make_messages, write_messages
from ..records import Address, Insert
from ..stores.validate import MOST_BODY as MOST_RECORD
from .engine.context import Attempt, current_attempt, current_session, is_on_loop, session_var
from .engine.ledger import STEP_DONE, EntryNote
from .engine.step_identity import arguments_digest, effect_key

if TYPE_CHECKING:
    from ..outbox.routing import Routing
    from ..stores.base import Store
    from ..stores.user_transaction import Join
    from .engine.session import Session
    from .runtime import Runtime
    from .step import Step

__all__ = ["OutgoingDraft", "in_transaction", "inserts_of", "minted_key", "origin_of", "pieces_of", "send"]


BESIDE = 8  # writes of a commit beside the messages: the claim, the entry, and what ends or wakes a run
MOST_WRITES = 3  # of a message in a space of its own: itself, its ticket and its lane
MOST_LINKED = 16 * 1024  # characters of messages that are linked in a store of small records: so are its commits


class OutgoingDraft(Struct, frozen=True):
    """A message of a step that has not completed yet. `own`: it lies in the run's space."""

    message: Message
    delay: float
    own: bool


def minted_key() -> str:
    return f"tp_{uuid4().hex}"


def origin_of(runtime: Runtime) -> MessageOrigin:
    """Return where a message comes from, with the headers that lead back to it."""
    from .effect_step import outgoing_context

    session = session_var.get()
    run = shown_run(session.claim.run) if session is not None and session.open else ""
    return MessageOrigin(f"twiceproof/{runtime.tenant}", run, outgoing_context())


def send(runtime: Runtime, routing: Routing, given: Sending) -> Any:
    """Send a message from wherever the caller is. Awaited in an `async def` flow, and on an event loop outside."""
    attempt = current_attempt()
    if attempt is not None:
        return _from_step(runtime, routing, given, attempt)
    session = current_session()
    if session is not None:
        return session.do(_from_flow(session, routing, given), names=("send",), called="send")
    work = _alone(runtime, routing, given)
    return await_(work) if is_on_loop() else block(work)


def _alone(runtime: Runtime, routing: Routing, given: Sending) -> Operation[SentMessage]:
    if given.key is None:
        raise Misuse(
            'app.send outside of a flow needs a key: app.send(topic, body, key="order:17:paid"). To send with your own '
            "rows, use `with app.outbox(connection) as outbox`."
        )
    messages = make_messages(routing, given, given.key, origin_of(runtime))
    return (yield from write_messages(runtime.store, runtime.tenant, messages, given.due_in))


# -- in a flow's body ----------------------------------------------------------------------------


def _from_flow(session: Session, routing: Routing, given: Sending) -> Operation[SentMessage]:
    name = session.name_for(f"send:{given.topic}")
    key = given.key if given.key is not None else effect_key(session.space, name)
    messages = make_messages(routing, given, key, origin_of(session.runtime), in_flow=True)
    asked = arguments_digest({"body": messages[0].digest, "order": given.order, "key": given.key})
    entry = session.visit(name, asked)
    if entry is not None:
        return msgspec.json.decode(entry.note.result, type=SentMessage)
    session.refuse_if_undoing()
    session.refuse_unvisited(name)
    messages = yield from _by_reference(session, name, messages)
    sent = SentMessage(key, tuple(message.target for message in messages))
    pieces: Sequence[Insert | LinkedMessage] = ()
    if given.key is None and given.order is None:
        pieces = _own_inserts(session, messages, given.due_in)
    elif _is_linked(session.runtime.store, messages):
        pieces = yield from _linked(session, messages, given.due_in)
        sent = structs.replace(sent, earlier=not pieces)
    else:  # what came before must be recorded, and the run be ours, before others can see the message
        yield from session.ledger.flush()
        sent = yield from write_messages(session.runtime.store, session.runtime.tenant, messages, given.due_in)
    session.finished(name, STEP_DONE, EntryNote(asked, result=Raw(msgspec.json.encode(sent))), *pieces)
    return sent


def _is_linked(store: Store, messages: Sequence[Message], beside: int = 0) -> bool:
    """Whether the messages land together with the entry of their call, and with `beside` other writes. Otherwise each
    is written in a commit of its own, just before.
    """
    if not store.links_spaces or beside + MOST_WRITES * len(messages) + BESIDE > store.batch_limit:
        return False
    return store.body_limit >= MOST_RECORD or sum(len(message.body) for message in messages) <= MOST_LINKED


def _linked(session: Session, messages: Sequence[Message], delay: float) -> Operation[list[LinkedMessage]]:
    """Return those messages that were not sent before. Raises PayloadMismatch if others were, under their key."""
    new = []
    for message in messages:
        draft = draft_of(session.runtime.tenant, message, delay)
        pending = session.ledger.pending_message(draft.at)
        if pending is not None:
            refuse_other_payload(pending.message, message)
        elif not (yield from is_known(session.runtime.store, draft)):
            new.append(draft)
    return new


def _by_reference(session: Session, name: str, messages: list[Message]) -> Operation[list[Message]]:
    """Keep a body that is too large for brokers as a resource of the run, and send a reference to it. The digest stays
    that of the body: the reference is another one after a crash.
    """
    body = messages[0].body.encode() if messages[0].content_type == JSON else b64decode(messages[0].body)
    if len(body) <= MOST_BODY:
        return messages
    from .resources import keep

    attempt = Attempt(session.space, name, 1)
    kept = yield from keep(session, attempt, body, messages[0].topic, messages[0].content_type)
    reference = msgspec.json.encode(kept).decode()
    return [structs.replace(each, body=reference, content_type=JSON) for each in messages]


def _own_inserts(session: Session, messages: Sequence[Message], delay: float) -> list[Insert]:
    """Return writes in the run's own space. A later run of the same key has addresses of its own."""
    start_id = session.work.start_id
    return [
        insert_message(Address(session.space, MESSAGE_KIND, f"{each.key}:{start_id}:{each.target}"), each, delay)
        for each in messages
    ]


# -- in a step -----------------------------------------------------------------------------------


def _from_step(runtime: Runtime, routing: Routing, given: Sending, attempt: Attempt) -> Any:
    """Keep the message until the step completes. There is nothing to wait for, also in an `async def` step."""
    session = session_var.get()
    step = session.calls.get(attempt.step) if session is not None else None
    if session is None or step is None or not attempt.starts:
        raise Misuse("app.send was called from a probe or an undo that has ended; send from the flow or a step.")
    _warn_if_adopted(step.step)
    nth = sum(draft.message.topic == given.topic for draft in attempt.outgoing) + 1
    key = given.key if given.key is not None else effect_key(attempt.space, f"{attempt.step}/send:{given.topic}#{nth}")
    messages = make_messages(routing, given, key, origin_of(runtime))
    own = given.key is None and given.order is None
    if own:
        _refuse_too_many(runtime.store, sum(draft.own for draft in attempt.outgoing) + len(messages))
    attempt.outgoing.extend(OutgoingDraft(message, given.due_in, own) for message in messages)
    sent = SentMessage(key, tuple(message.target for message in messages))
    return _SentNow(sent) if step.step.is_async else sent


def _refuse_too_many(store: Store, count: int) -> None:
    """Refuse messages that could not land with the completion of their step: its work would have been done by then."""
    most = max(1, store.batch_limit - BESIDE)
    if count > most:
        raise Misuse(
            f"A step sends at most {most} messages with this ledger, which writes them together with the step's "
            "completion; send the others from further steps, or from the flow's body."
        )


def _warn_if_adopted(step: Step) -> None:
    """Warn, at the line that sends, if the step may be taken for done without its function being called again."""
    repeat = step.plan.repeat
    if repeat.kind in ("check", "never") or repeat.probe is not None:
        warnings.warn(
            f"{step.name} is declared {repeat.kind}: if it is cut off, and then found or settled as done, it is not "
            "called again, and this message is never sent. Send it in the flow, after the step.",
            TwiceproofWarning,
            stacklevel=5,
        )


class _SentNow:
    """For an `async def` step: may be awaited like every other call, and need not be."""

    def __init__(self, sent: SentMessage) -> None:
        self.key, self.targets, self.earlier = sent.key, sent.targets, sent.earlier
        self._sent = sent

    def __await__(self) -> Any:
        yield from ()
        return self._sent


def inserts_of(session: Session, drafts: Sequence[OutgoingDraft]) -> list[Insert]:
    """Return the writes in the run's own space that go with the completion of a step."""
    return [insert for draft in drafts if draft.own for insert in _own_inserts(session, [draft.message], draft.delay)]


def pieces_of(session: Session, drafts: Sequence[OutgoingDraft]) -> Operation[list[Insert | LinkedMessage]]:
    """Return all that goes with the completion of a step that has returned; write before it what cannot go with it."""
    pieces: list[Insert | LinkedMessage] = [*inserts_of(session, drafts)]
    if not _is_linked(session.runtime.store, [draft.message for draft in drafts if not draft.own], len(pieces)):
        yield from _write_others(session, drafts)
        return pieces
    for draft in drafts:
        if not draft.own:
            new = yield from _linked(session, [draft.message], draft.delay)
            pieces += [one for one in new if not _is_repeated(one, pieces)]
    return pieces


def _is_repeated(draft: LinkedMessage, pieces: Sequence[Insert | LinkedMessage]) -> bool:
    """Whether the step sent the same before. Raises PayloadMismatch if it sent another under this key."""
    same = next((one for one in pieces if isinstance(one, LinkedMessage) and one.at == draft.at), None)
    if same is not None:
        refuse_other_payload(same.message, draft.message)
    return same is not None


def _write_others(session: Session, drafts: Sequence[OutgoingDraft]) -> Operation[None]:
    """Write messages with spaces of their own. What came before must be recorded, and the run be ours."""
    others = [draft for draft in drafts if not draft.own]
    if others:
        yield from session.ledger.flush()
    for draft in others:
        yield from write_messages(session.runtime.store, session.runtime.tenant, [draft.message], draft.delay)


def in_transaction(join: Join, tenant: str, drafts: Sequence[OutgoingDraft]) -> Operation[None]:
    """Write the other messages of a step in its transaction."""
    from ..outbox.transaction_outbox import land_messages

    others = [(draft.message, draft.delay) for draft in drafts if not draft.own]
    if others:
        yield from land_messages(join, tenant, others)
