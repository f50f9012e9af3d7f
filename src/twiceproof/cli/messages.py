"""`twiceproof messages list|show|resend|drop|pause|resume`: messages that flows and transactions have sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
import msgspec

from ..keys import validate_key
from ..operations import Operation, block
from ..outbox import queries
from ..outbox.message import STATES
from ..outbox.pauses import PausedTarget, list_pauses, pause_target, resume_target
from ..outbox.queries import MessageShape, count_messages, list_messages, show_message
from .output import counted, json_text, moment, show_json, show_moves, show_pairs, show_table, show_text, span
from .prompts import by_option, confirm, limit_option, login_name, note_option, yes_option
from .target import LedgerTarget, command, opened, target_options

__all__ = ["messages"]

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
"""
DROP_EPILOG = """\b
Examples:
  twiceproof messages drop order:17:paid --note "the order was cancelled" --yes
"""
PAUSE_EPILOG = """\b
Examples:
  twiceproof messages pause partner.example-1f2e3d4c --note "their migration"
No relay publishes to it until it is resumed; messages to it wait. Relays that run
notice it within five seconds.
"""
RESUME_EPILOG = """\b
Examples:
  twiceproof messages resume partner.example-1f2e3d4c
What waited is published within half a minute.
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
        show_text(f"{counted(counts.held_lanes, 'order key')} held up by a message that waits for review.")


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


_which = click.option("--to", "receiver", metavar="NAME", default="", help="To which broker or webhook it went.")


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
    yield "next try", moment(found.due_at) if found.due_at else ""
    yield "decided by", f"{found.by}{': ' if found.note else ''}{found.note}"
    yield "headers", " ".join(f"{name}={value}" for name, value in found.headers.items())
    yield "body", json_text(found.body) if found.body is not None else f"not kept, SHA-256 {found.digest}"


def _decides(function: F) -> F:
    return click.argument("key")(_which(target_options(by_option(note_option("the message")(function)))))


@messages.command(epilog=RESEND_EPILOG)
@_decides
@click.pass_obj
def resend(target: LedgerTarget, key: str, receiver: str, by: str | None, note: str) -> None:
    """Publish a parked message again, with the same key."""
    _settle(
        target,
        key,
        by,
        lambda store, who: queries.resend(store, target.tenant, key, by=who, target=receiver, note=note),
    )


@messages.command(epilog=DROP_EPILOG, short_help="Give a message up; what waits behind it goes on.")
@_decides
@yes_option
@click.pass_obj
def drop(target: LedgerTarget, key: str, receiver: str, by: str | None, note: str, yes: bool) -> None:
    """Give a message up. What waits behind it goes on."""
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
        show_text(f"{key} to {found.target} is {found.state}.")


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
    show_json(resumed) if target.json else show_text(f"{name} is published to again.")
