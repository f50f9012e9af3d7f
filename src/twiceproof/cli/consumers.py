"""`twiceproof consumers list` and `twiceproof brokers list|doctor`: queues, and what their brokers lose or repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..errors import TwiceproofError
from ..inbound.queues.queries import BrokerShape, ConsumerShape, broker_shapes, consumer_shapes
from ..operations import block
from ..outbox.pauses import list_pauses
from .output import NEGATIVE, moment, show_json, show_table, show_text, span
from .target import LedgerTarget, json_option

if TYPE_CHECKING:
    from ..app.app import App
    from ..brokers.base import BrokerFinding
    from ..outbox.routing import Target, TopicRoute

__all__ = ["brokers", "consumers", "list_brokers", "list_consumers"]


CONSUMERS_HEAD = ("CONSUMER", "QUEUE", "STARTS", "KEY", "PREFETCH", "POISON", "KEPT FOR")
LIST_EPILOG = """\b
Examples:
  twiceproof consumers list shop:app
KEY identifies a message, KEPT FOR is how long it is recognised as a duplicate. `twiceproof brokers
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
        shapes = consumer_shapes(found.consumers, found.routing)
    if target.json:
        show_json({"consumers": [msgspec.to_builtins(one) for one in shapes]})
    elif not shapes:
        show_text(f'{app} declares no consumers; declare one with app.consume("main/orders", start=…).')
    else:
        show_table(CONSUMERS_HEAD, [_consumer_row(shape) for shape in shapes])
    missing = [shape for shape in shapes if not shape.broker_declared]
    for shape in missing if not target.json else ():
        show_text(f'{shape.name} has no broker; declare it: app.broker("{shape.broker}", env("BROKER_URL")).')
    if missing:
        raise click.exceptions.Exit(NEGATIVE)


def _consumer_row(shape: ConsumerShape) -> tuple[str, ...]:
    kept = "ever" if shape.keep is None else span(shape.keep)
    starts = shape.starts or "(inline)"
    return shape.name, shape.place, starts, shape.key, str(shape.prefetch), shape.poison, kept


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
        shapes = broker_shapes(found.consumers, found.routing, block(list_pauses(found.store)))
    if target.json:
        show_json({"brokers": [msgspec.to_builtins(one) for one in shapes]})
    elif not shapes:
        show_text(f'{app} declares no brokers; declare one with app.broker("main", env("BROKER_URL")).')
    else:
        show_table(BROKERS_HEAD, [_broker_row(one) for one in shapes])


def _broker_row(one: BrokerShape) -> tuple[str, ...]:
    paused = one.paused
    return (
        one.name,
        ", ".join(one.routes) or "-",
        ", ".join(one.consumers) or "-",
        "-" if paused is None else f"{moment(paused.paused_at)} {paused.why}".rstrip(),
    )


FINDINGS_HEAD = ("BROKER", "LEVEL", "ABOUT", "FINDING")
DOCTOR_EPILOG = """\b
Examples:
  twiceproof brokers doctor shop:app
Connects to each broker, and examines it and the queues that the app publishes to
and consumes. Counts what waits in those that it consumes, where the broker tells.
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
        found = _ask(app.routing.targets[name], [one.place for one in consumed], _routed(name, app))
    except TwiceproofError as error:
        found = [BrokerFinding("error", "connection", str(error))]
    yield from found
    for consumer in consumed:
        for text in dict.fromkeys(filter(None, (forgotten_early(consumer, one) for one in found))):
            yield BrokerFinding("warning", consumer.place, text)


def _routed(name: str, app: App) -> list[str]:
    """Return the places that routes lead to; a route of several topics without a place has none to look at."""
    return [route.place or route.topics for route in app.routing.routes if route.target == name and _has_place(route)]


def _has_place(route: TopicRoute) -> bool:
    return bool(route.place) or "*" not in route.topics


def _ask(target: Target, consumed: Sequence[str], routed: Sequence[str]) -> Sequence[BrokerFinding]:
    """A webhook has nothing to examine."""
    broker: Any = target.open()
    if not hasattr(broker, "examine"):
        return ()
    examine_routes = getattr(broker, "examine_routes", broker.examine)
    try:
        read = list(dict.fromkeys(consumed))
        found = [*broker.examine(read), *examine_routes(list(dict.fromkeys(routed)))]
        return list(dict.fromkeys([*found, *_lengths(broker, read, found)]))
    finally:
        if not target.shared:
            broker.close()


def _lengths(broker: Any, places: Sequence[str], found: Sequence[BrokerFinding]) -> Iterator[BrokerFinding]:
    """Say how many messages wait in each queue that can be read, where the broker tells."""
    from ..brokers.base import BrokerFinding

    wrong = {one.subject for one in found if one.level == "error"}
    if "connection" in wrong or not hasattr(broker, "waiting"):
        return
    for place in [one for one in places if one not in wrong]:
        number = broker.waiting(place)
        if number is not None:
            yield BrokerFinding("ok", place, f"Messages that wait in it: {number:,}.")


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
