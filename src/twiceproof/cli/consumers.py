"""`twiceproof consumers list` and `twiceproof brokers list|doctor`: queues, and what their brokers lose or repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..errors import TwiceproofError
from ..operations import block
from ..outbox.pauses import PausedTarget, list_pauses
from .output import NEGATIVE, moment, show_json, show_table, show_text, span
from .target import LedgerTarget, json_option

if TYPE_CHECKING:
    from ..app.app import App
    from ..brokers.base import BrokerFinding
    from ..inbound.queues.consumer import Consumer
    from ..outbox.routing import Target

__all__ = ["brokers", "consumers", "list_brokers", "list_consumers"]


CONSUMERS_HEAD = ("CONSUMER", "QUEUE", "STARTS", "KEY", "PREFETCH", "POISON", "KEPT FOR")
LIST_EPILOG = """\b
Examples:
  twiceproof consumers list shop:app
KEY is what a message is recognised by, KEPT FOR how long. `twiceproof brokers
doctor` compares it with the time for which a broker keeps messages.
Exit codes: 1 if a consumer reads from a broker that is not declared.
"""


@click.command("list", epilog=LIST_EPILOG)
@click.argument("app", metavar="MODULE:APP")
@json_option
@click.pass_obj
def list_consumers(target: LedgerTarget, app: str) -> None:
    """List the consumers of an app."""
    from .load import load_app

    with load_app(app) as found:
        shapes = [_consumer_shape(one, found) for one in found.consumers.values()]
    if target.json:
        show_json({"consumers": shapes})
    elif not shapes:
        show_text(f'{app} declares no consumers; declare one with app.consume("main/orders", start=…).')
    else:
        show_table(CONSUMERS_HEAD, [_consumer_row(shape) for shape in shapes])
    missing = [shape for shape in shapes if not shape["broker_declared"]]
    for shape in missing if not target.json else ():
        show_text(f'{shape["name"]} has no broker; declare it: app.broker("{shape["broker"]}", env("BROKER_URL")).')
    if missing:
        raise click.exceptions.Exit(NEGATIVE)


def _consumer_shape(consumer: Consumer, app: App) -> dict[str, Any]:
    return {
        "name": consumer.name,
        "broker": consumer.broker,
        "broker_declared": consumer.broker in app.routing.targets,
        "place": consumer.place,
        "starts": "" if consumer.function is not None else consumer.flow.name,
        "key": consumer.key_text,
        "prefetch": consumer.prefetch,
        "poison": consumer.poison,
        "keep": consumer.policy.life.keep,
    }


def _consumer_row(shape: dict[str, Any]) -> tuple[str, ...]:
    kept = "ever" if shape["keep"] is None else span(shape["keep"])
    starts = shape["starts"] or "(inline)"
    return shape["name"], shape["place"], starts, shape["key"], str(shape["prefetch"]), shape["poison"], kept


BROKERS_HEAD = ("BROKER", "ROUTES", "CONSUMERS", "PAUSED")
BROKERS_EPILOG = """\b
Examples:
  twiceproof brokers list shop:app
URLs are not printed: they hold passwords.
"""


@click.command("list", epilog=BROKERS_EPILOG)
@click.argument("app", metavar="MODULE:APP")
@json_option
@click.pass_obj
def list_brokers(target: LedgerTarget, app: str) -> None:
    """List the brokers of an app, with their routes and consumers."""
    from .load import load_app

    with load_app(app) as found:
        paused = {one.target: one for one in block(list_pauses(found.store))}
        shapes = [_broker_shape(name, found, paused.get(name)) for name in found.routing.targets]
    if target.json:
        show_json({"brokers": shapes})
    elif not shapes:
        show_text(f'{app} declares no brokers; declare one with app.broker("main", env("BROKER_URL")).')
    else:
        show_table(BROKERS_HEAD, [_broker_row(one) for one in shapes])


def _broker_row(one: dict[str, Any]) -> tuple[str, ...]:
    paused = one["paused"]
    return (
        one["name"],
        ", ".join(one["routes"]) or "-",
        ", ".join(one["consumers"]) or "-",
        "-" if paused is None else f"{moment(paused['paused_at'])} {paused.get('why', '')}".rstrip(),
    )


def _broker_shape(name: str, app: App, paused: PausedTarget | None) -> dict[str, Any]:
    return {
        "name": name,
        "routes": [route.topics for route in app.routing.routes if route.target == name],
        "consumers": [one.name for one in app.consumers.values() if one.broker == name],
        "paused": None if paused is None else msgspec.to_builtins(paused),
    }


FINDINGS_HEAD = ("BROKER", "LEVEL", "ABOUT", "FINDING")
DOCTOR_EPILOG = """\b
Examples:
  twiceproof brokers doctor shop:app
It connects to each broker and asks for what it tells of itself and of the queues
that are routed to and consumed.
Exit codes: 1 if there is an error, such as a queue that does not exist.
"""


@click.command(epilog=DOCTOR_EPILOG)
@click.argument("app", metavar="MODULE:APP")
@json_option
@click.pass_obj
def doctor(target: LedgerTarget, app: str) -> None:
    """Check brokers for settings that lose or repeat messages."""
    from .load import load_app

    with load_app(app) as found:
        findings = [(name, one) for name in found.routing.targets for one in _examined(name, found)]
    if target.json:
        shapes = [{"broker": n, "level": one.level, "subject": one.subject, "text": one.text} for n, one in findings]
        show_json({"findings": shapes})
    elif not findings:
        show_text(f'{app} declares no brokers; declare one with app.broker("main", env("BROKER_URL")).')
    else:
        show_table(FINDINGS_HEAD, [(name, one.level, one.subject, one.text) for name, one in findings])
    if any(one.level == "error" for _, one in findings):
        raise click.exceptions.Exit(NEGATIVE)


def _examined(name: str, app: App) -> Iterator[BrokerFinding]:
    from ..brokers.base import BrokerFinding
    from ..inbound.queues.reader import forgotten_early

    consumed = [one for one in app.consumers.values() if one.broker == name]
    try:
        found = _ask(app.routing.targets[name], _places(name, app))
    except TwiceproofError as error:
        found = [BrokerFinding("error", "connection", str(error))]
    yield from found
    for consumer in consumed:
        for text in dict.fromkeys(filter(None, (forgotten_early(consumer, one) for one in found))):
            yield BrokerFinding("warning", consumer.place, text)


def _places(name: str, app: App) -> list[str]:
    routed = [route.place for route in app.routing.routes if route.target == name and route.place]
    return list(dict.fromkeys([*routed, *(one.place for one in app.consumers.values() if one.broker == name)]))


def _ask(target: Target, places: Sequence[str]) -> Sequence[BrokerFinding]:
    """A webhook has nothing to examine."""
    broker: Any = target.open()
    try:
        return broker.examine(places) if hasattr(broker, "examine") else ()
    finally:
        if not target.shared:
            broker.close()


EPILOG = """\b
Examples:
  twiceproof consumers list shop:app
  twiceproof consume shop:app --consumer main/orders
"""


@click.group(epilog=EPILOG)
def consumers() -> None:
    """List the consumers of queues."""


@click.group(epilog="\b\nExamples:\n  twiceproof brokers list shop:app\n  twiceproof brokers doctor shop:app\n")
def brokers() -> None:
    """List and check message brokers."""


consumers.add_command(list_consumers)
brokers.add_command(list_brokers)
brokers.add_command(doctor)
