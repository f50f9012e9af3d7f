"""`twiceproof messages …`: messages that flows and transactions have sent; `twiceproof outbox ddl`: their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
import msgspec

from ..keys import validate_key
from ..operations import Operation, block
from ..outbox import queries
from ..outbox.foreign_table import DIALECTS, outbox_ddl
from ..outbox.message import STATES
from ..outbox.pauses import PausedTarget, list_pauses, pause_target, resume_target
from ..outbox.queries import MessageShape, count_messages, list_messages, show_message
from .output import counted, json_text, moment, show_json, show_moves, show_pairs, show_table, show_text, span
from .prompts import by_option, confirm, limit_option, login_name, note_option, yes_option
from .target import LedgerTarget, command, json_option, opened, target_options

__all__ = ["messages", "outbox"]

F = TypeVar("F", bound=Callable[..., Any])

HEAD = ("KEY", "TOPIC", "TARGET", "STATE", "SENT AT", "TRIES", "REASON")
EPILOG = """\b
Examples:
  twiceproof messages list --state parked
  twiceproof messages show order:17:paid
  twiceproof messages resend order:17:paid --note "queue created"
"""
SHOW_EPILOG = """\b
Examples:
  twiceproof messages show order:17:paid
  twiceproof messages show order:17:paid --to main --json
"""
RESEND_EPILOG = """\b
Examples:
  twiceproof messages resend order:17:paid --note "queue created"
  twiceproof messages resend order:17:paid --as-new --note "they deleted it by mistake"
"""
DROP_EPILOG = """\b
Examples:
  twiceproof messages drop order:17:paid --note "the order was cancelled" --yes
"""
PAUSE_EPILOG = """\b
Examples:
  twiceproof messages pause partner.example-1f2e3d4c --note "their migration"
No relay publishes to it until it is resumed; messages to it wait. Running relays
notice it within five seconds.
"""
RESUME_EPILOG = """\b
Examples:
  twiceproof messages resume partner.example-1f2e3d4c
Waiting messages are published within half a minute.
"""
NOT_SENT = tuple(state for state in STATES if state not in ("sent", "dropped"))


@click.group(epilog=EPILOG)
def messages() -> None:
    """List, resend and drop messages; pause and resume targets."""


@messages.command("list", epilog=EPILOG)
@click.option(
    "--state",
    "states",
    type=click.Choice([*STATES, "all"]),
    multiple=True,
    help="Only messages in this state; may be given several times. Default: those that are not sent or dropped.",
)
@click.option("--to", "receiver", metavar="NAME", default="", help="Only messages to this broker or webhook.")
@click.option("--topic", metavar="TOPIC", default="", help="Only messages of this topic.")
@limit_option()
@target_options
@click.pass_obj
def list_(target: LedgerTarget, states: tuple[str, ...], receiver: str, topic: str, limit: int) -> None:
    """List messages, those that need attention first."""
    chosen = STATES if "all" in states else states or NOT_SENT
    with opened(target) as store:
        found = block(list_messages(store, target.tenant, states=chosen, target=receiver, topic=topic, limit=limit + 1))
        counts = block(count_messages(store, target.tenant))
        paused = block(list_pauses(store))
    if target.json:
        shapes = [_shape(one) for one in found[:limit]]
        show_json({"messages": shapes, "counts": counts, "paused": paused, "more": len(found) > limit})
        return
    for one in paused:
        show_text(f"{_paused(one)} Resume it with: {command(target, 'messages', 'resume', one.target)}")
    if not found:
        show_text("No messages.")
        return
    show_table(HEAD, [_row(one) for one in found[:limit]])
    if counts.oldest_pending is not None:
        show_text(f"The oldest pending message is {span(counts.oldest_pending)} old.")
    if counts.held_lanes:
        show_text(f"{counted(counts.held_lanes, 'order key')} blocked by a message in review.")


def _paused(one: PausedTarget) -> str:
    why = f": {one.why}" if one.why else ""
    return f"Nothing is published to {one.target} since {moment(one.paused_at)} (paused by {one.by}{why})."


def _row(one: MessageShape) -> tuple[Any, ...]:
    return one.key, one.topic, one.target, one.state, moment(one.created_at), one.starts, one.why


def _shape(one: MessageShape) -> dict[str, Any]:
    """The body is left out of lists: it may hold personal data."""
    shape: dict[str, Any] = msgspec.to_builtins(one)
    shape.pop("body", None)
    return shape


_which = click.option("--to", "receiver", metavar="NAME", default="", help="Broker or webhook that it was sent to.")


@messages.command(epilog=SHOW_EPILOG)
@click.argument("key")
@_which
@target_options
@click.pass_obj
def show(target: LedgerTarget, key: str, receiver: str) -> None:
    """Show one message: its body, headers, attempts and receipt."""
    with opened(target) as store:
        found = block(show_message(store, target.tenant, key, receiver))
    if target.json:
        show_json(msgspec.to_builtins(found))
        return
    show_pairs([(name, text) for name, text in _pairs(found) if text not in ("", None)])
    if found.state == "parked":
        show_moves(
            [
                ("publish it again", command(target, "messages", "resend", key)),
                ("give it up", command(target, "messages", "drop", key)),
            ]
        )


def _pairs(found: MessageShape) -> Iterator[tuple[str, Any]]:
    yield "key", found.key
    yield "topic", found.topic
    yield "target", f"{found.target}, {found.place}"
    yield "state", found.state
    yield "reason", found.why
    yield "order key", found.order
    yield "run", found.run
    yield "sent", moment(found.created_at)
    yield "published", moment(found.sent_at) if found.sent_at else ""
    yield "receipt", found.receipt
    yield "tries", found.starts or ""
    yield "attempts", "\n".join(f"{moment(one.at)} {one.outcome}: {one.why}" for one in found.attempts)
    yield "next try", moment(found.due_at) if found.due_at else ""
    yield "decided by", f"{found.by}{': ' if found.note else ''}{found.note}"
    yield "headers", " ".join(f"{name}={value}" for name, value in found.headers.items())
    yield "body", json_text(found.body) if found.body is not None else f"not kept, SHA-256 {found.digest}"


def _decides(function: F) -> F:
    return click.argument("key")(_which(target_options(by_option(note_option("the message")(function)))))


@messages.command(epilog=RESEND_EPILOG)
@click.option("--as-new", is_flag=True, help="With a new key: receivers that had the old one process it again.")
@_decides
@click.pass_obj
def resend(target: LedgerTarget, key: str, receiver: str, by: str | None, note: str, as_new: bool) -> None:
    """Publish a parked message again, with the same key."""

    def decide(store: Any, who: str) -> Operation[MessageShape]:
        return queries.resend(store, target.tenant, key, by=who, target=receiver, note=note, as_new=as_new)

    _settle(target, key, by, decide)


@messages.command(epilog=DROP_EPILOG, short_help="Drop a message, and publish those blocked by it.")
@_decides
@yes_option
@click.pass_obj
def drop(target: LedgerTarget, key: str, receiver: str, by: str | None, note: str, yes: bool) -> None:
    """Drop a message, and publish those blocked by it."""
    confirm(f"Drop the message {key}? It will not be published.", yes=yes)
    _settle(
        target, key, by, lambda store, who: queries.drop(store, target.tenant, key, by=who, target=receiver, note=note)
    )


def _settle(
    target: LedgerTarget, key: str, by: str | None, decide: Callable[[Any, str], Operation[MessageShape]]
) -> None:
    with opened(target) as store:
        found = block(decide(store, validate_key(by or login_name())))
    if target.json:
        show_json(_shape(found))
    else:
        renamed = "" if found.key == key else f" It has the new key {found.key}; the old message is dropped."
        show_text(f"{key} to {found.target} is {found.state}.{renamed}")


@messages.command(epilog=PAUSE_EPILOG)
@click.argument("name", metavar="TARGET")
@target_options
@by_option
@note_option("the pause")
@click.pass_obj
def pause(target: LedgerTarget, name: str, by: str | None, note: str) -> None:
    """Publish nothing more to a broker or webhook until it is resumed."""
    with opened(target) as store:
        paused = block(pause_target(store, name, by=validate_key(by or login_name()), why=note))
    show_json(paused) if target.json else show_text(_paused(paused))


@messages.command(epilog=RESUME_EPILOG)
@click.argument("name", metavar="TARGET")
@target_options
@click.pass_obj
def resume(target: LedgerTarget, name: str) -> None:
    """Publish to a paused broker or webhook again."""
    with opened(target) as store:
        resumed = block(resume_target(store, name))
    show_json(resumed) if target.json else show_text(f"Publishing to {name} again.")


DDL_EPILOG = """\b
Examples:
  twiceproof outbox ddl --dialect postgresql > migrations/0007_outbox.sql
The tables are for messages sent from a transaction in another database than the ledger's:
app.outbox(connection, ledger="elsewhere"). app.drain(URL) moves them.
"""


@click.group()
def outbox() -> None:
    """Create an outbox table in another database than the ledger's."""


@outbox.command(epilog=DDL_EPILOG)
@click.option("--dialect", metavar=f"[{'|'.join(DIALECTS)}]", required=True, help="Kind of the database.")
@json_option
@click.pass_obj
def ddl(target: LedgerTarget, dialect: str) -> None:
    """Print the statements that create the outbox tables."""
    text = outbox_ddl(dialect)
    show_json({"dialect": dialect, "statements": text}) if target.json else show_text(text.rstrip())
