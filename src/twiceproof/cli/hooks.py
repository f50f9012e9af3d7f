"""`twiceproof hooks list|test|dead-letters|replay`: webhooks."""

from __future__ import annotations

import http.client
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import Struct

from ..claims.claim import validate_name
from ..errors import Misuse, ResultNotKept
from ..inbound.dead_letters import DeadLetter
from ..inbound.dead_letters import letters as kept_letters
from ..inbound.source import Envelope
from ..operations import block
from .output import NEGATIVE, NoAnswer, moment, show_json, show_pairs, show_table, show_text, span
from .prompts import limit_option, login_name
from .target import LedgerTarget, command, json_option, no_store, opened, target_options, tenant_option

if TYPE_CHECKING:
    from ..app.app import App
    from ..inbound.hook import HookShape
    from ..inbound.source import Source

__all__ = ["DeliveryResponse", "dead_letters", "hooks", "list_", "post_delivery", "replay", "test"]


DEAD_LETTERS_HEAD = ("DEAD LETTER", "RECEIVED BY", "RECEIVED", "BYTES", "REASON")
DEAD_LETTERS_EPILOG = """\b
Examples:
  twiceproof hooks dead-letters
  twiceproof hooks dead-letters --hook stripe --json
The newest come first. Dead letters are kept for 30 days.
"""
NO_DEAD_LETTERS = "No dead letters."


@click.command(epilog=DEAD_LETTERS_EPILOG)
@click.option("--hook", metavar="NAME", default="", help="Only dead letters of this webhook or consumer.")
@limit_option()
@target_options
@click.pass_obj
def dead_letters(target: LedgerTarget, hook: str, limit: int) -> None:
    """List deliveries that could not be processed."""
    with opened(target) as store:
        found = block(kept_letters(store, validate_name("tenant", target.tenant), hook))
    if target.json:
        show_json({"dead_letters": [_letter_shape(letter) for letter in found[:limit]], "more": len(found) > limit})
        return
    if not found:
        show_text(NO_DEAD_LETTERS)
        return
    show_table(DEAD_LETTERS_HEAD, [(x.id, x.hook, moment(x.received_at), x.size, _reason(x)) for x in found[:limit]])
    if len(found) > limit:
        more = command(target, "hooks", "dead-letters", "--limit", str(limit * 10))
        show_text(f"To list {len(found) - limit} more: {more}")
    show_text("To process one again, once its cause is repaired: twiceproof hooks replay MODULE:APP DEAD_LETTER")


def _reason(letter: DeadLetter) -> str:
    return (
        f"{letter.reason} ({len(letter.refused_events):,} events)" if len(letter.refused_events) > 1 else letter.reason
    )


def _letter_shape(letter: DeadLetter) -> dict[str, Any]:
    """The body is left out: it may hold personal data."""
    return {
        "id": letter.id,
        "hook": letter.hook,
        "events": letter.refused_events,
        "reason": letter.reason,
        "received_at": letter.received_at,
        "size": letter.size,
        "digest": letter.digest,
        "can_be_replayed": letter.is_whole,
    }


HOOKS_HEAD = ("PATH", "SOURCE", "FLOW", "RETRIED FOR", "KEPT FOR", "SECRET")
LIST_EPILOG = """\b
Examples:
  twiceproof hooks list shop:app
RETRIED FOR is how long the sender repeats an event, KEPT FOR how long it is
recognised as a duplicate. Secrets are never printed.
Exit codes: 1 if a secret is missing, or events are kept for too short a time.
"""


@click.command("list", epilog=LIST_EPILOG, short_help="List the webhooks of an app, and check them.")
@click.argument("app", metavar="MODULE:APP")
@json_option
@click.pass_obj
def list_(target: LedgerTarget, app: str) -> None:
    """List the webhooks of an app, and check their secrets and retention."""
    from ..inbound.hook import hook_shape
    from .load import load_app

    with load_app(app) as found:
        shapes = [hook_shape(hook) for hook in found.hooks.values()]
    if target.json:
        show_json({"hooks": shapes})
    else:
        _show_hooks(app, shapes)
    if not all(shape.secret_set and shape.kept_long_enough for shape in shapes):
        raise click.exceptions.Exit(NEGATIVE)


def _show_hooks(app: str, shapes: Sequence[HookShape]) -> None:
    if not shapes:
        show_text(f"{app} declares no webhooks; declare one with app.webhook(SOURCE, secret=…, start=…).")
        return
    show_table(HOOKS_HEAD, [_row(shape) for shape in shapes])
    for shape in shapes:
        if not shape.secret_set:
            show_text(f"{shape.name} has no secret, so its deliveries are refused; set secret=.")
        if not shape.kept_long_enough:
            show_text(f"{shape.name} may repeat an event after it was deleted; use a longer keep=.")


def _row(shape: HookShape) -> tuple[str, ...]:
    kept = "ever" if shape.keep is None else span(shape.keep)
    secret = "set" if shape.secret_set else "MISSING"
    return shape.path, shape.source, shape.flow, span(shape.retry_window), kept, secret


REPLAY_HEAD = ("DEAD LETTER", "OUTCOME", "RUN OR REASON")
REPLAY_EPILOG = """\b
Examples:
  twiceproof hooks replay shop:app ltr_1f0c2d…
  twiceproof hooks replay shop:app --all --hook stripe
Exit codes: 1 if one of them still cannot be processed; it is kept.
"""


@click.command(epilog=REPLAY_EPILOG)
@click.argument("app", metavar="MODULE:APP")
@click.argument("dead_letter", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Replay all dead letters, the oldest first.")
@click.option("--hook", metavar="NAME", default="", help="With --all: only dead letters of this webhook.")
@tenant_option
@json_option
@no_store
@click.pass_obj
def replay(target: LedgerTarget, app: str, dead_letter: tuple[str, ...], everything: bool, hook: str) -> None:
    """Process dead letters again.

    Their signatures were valid when they arrived, and they are claimed under the same ids: an event that was processed
    meanwhile is a duplicate.
    """
    from .load import load_app

    if bool(dead_letter) is everything:
        raise Misuse("Name dead letters, or use --all; list them with: twiceproof hooks dead-letters")
    with load_app(app) as found:
        tenants = found.of(target.given_tenant) if target.given_tenant else found
        names = dead_letter or _all(tenants, hook)
        shapes = [shape for name in names for shape in _replayed(tenants, name)]
    if target.json:
        show_json({"replayed": shapes})
    elif not shapes:
        show_text(NO_DEAD_LETTERS)
    else:
        show_table(REPLAY_HEAD, [(s["dead_letter"], s["outcome"], s["run"] or s["reason"]) for s in shapes])
    if any(shape["outcome"] in ("refused", "poison", "mismatch", "busy", "failed") for shape in shapes):
        raise click.exceptions.Exit(NEGATIVE)


def _all(app: App, hook: str) -> list[str]:
    return [letter.id for letter in reversed(block(kept_letters(app.store, app.settings.tenant, hook)))]


def _replayed(app: App, name: str) -> list[dict[str, Any]]:
    """Return one entry per event of a dead letter. One that cannot be read does not stop the others."""
    from ..inbound.replay import replay_letter

    try:
        hooks = {**app.hooks, **app.consumers}
        admitted = block(replay_letter(app.runtime, hooks, name, by=login_name()))
    except (Misuse, ResultNotKept) as error:
        return [{"dead_letter": name, "event": "", "outcome": "refused", "run": "", "reason": str(error)}]
    return [
        {"dead_letter": name, "event": one.event, "outcome": one.outcome, "run": one.run, "reason": one.reason}
        for one in admitted
    ]


TIMEOUT = 30.0  # seconds; longer than most senders wait, because a late response is also worth showing
LONGEST = 4_000
FORBIDDEN = re.compile("[^!-~]")  # characters that a request line must not contain unescaped
DEAD_LETTER_STATES = ("poison", "mismatch")


class DeliveryState(Struct, frozen=True):
    """The part of a response body that says what happened to a delivery."""

    state: str = ""


class DeliveryResponse(Struct, frozen=True):
    """What a server responded to a delivery."""

    status: int
    seconds: float
    text: str

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300 and not self.is_dead_letter

    @property
    def is_dead_letter(self) -> bool:
        """Whether it was acknowledged, so that the sender does not repeat it for days, but nothing was started."""
        try:
            return msgspec.json.decode(self.text, type=DeliveryState).state in DEAD_LETTER_STATES
        except msgspec.MsgspecError:
            return False

    def shape(self) -> dict[str, Any]:
        return {"status": self.status, "seconds": round(self.seconds, 6), "response": self.text}


def post_delivery(url: str, sample: Envelope, deadline: float) -> DeliveryResponse:
    connection, target = _connection(url, sample.query, max(TIMEOUT, deadline))
    begun = time.monotonic()
    try:
        connection.request("POST", target, sample.body, sample.headers)
        response = connection.getresponse()
        body = response.read(LONGEST)
    except (OSError, http.client.HTTPException) as error:
        why = type(error).__name__ if not str(error) else str(error)
        raise NoAnswer(f"No server responded at {url} ({why}); start one with: twiceproof serve MODULE:APP") from None
    finally:
        connection.close()
    return DeliveryResponse(response.status, time.monotonic() - begun, body.decode("utf-8", "replace"))


def _connection(url: str, query: str, timeout: float) -> tuple[http.client.HTTPConnection, str]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as the connection does; a host name that cannot be encoded is an error of the URL
    except ValueError:
        host, port = "", None
    if not host or parts.scheme not in ("http", "https") or FORBIDDEN.search(f"{parts.path}?{parts.query}"):
        raise Misuse(
            f"{url!r} is not an HTTP URL; write it like http://127.0.0.1:8000/hooks/stripe, with other characters "
            "percent-encoded."
        )
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    whole_query = "&".join(part for part in (parts.query, query) if part)
    return kind(host, port, timeout=timeout), (parts.path or "/") + (f"?{whole_query}" if whole_query else "")


LISTS = ("fingerprint", "origins", "hosts", "certificate")
TEST_EPILOG = """\b
Examples:
  twiceproof hooks test stripe --url http://127.0.0.1:8000/hooks/stripe --secret-env STRIPE_SECRET
  twiceproof hooks test github --url … --secret-env GITHUB_SECRET --event push.json
  twiceproof hooks test generic --url … --secret-env SECRET --option id=order.id --option signature=X-Sig
The same event has the same id: sent a second time, it is a duplicate.
Exit codes: 0 accepted, or a duplicate; 1 refused, dead-lettered, or no response.
"""


@click.command(epilog=TEST_EPILOG, short_help="Send a signed sample event to a running server.")
@click.argument("source")
@click.option("--url", metavar="URL", required=True, help="URL of the webhook, as the sender would call it.")
@click.option(
    "--secret-env",
    metavar="NAME",
    required=True,
    help="Environment variable that holds the secret; other users can read a command line.",
)
@click.option(
    "--event",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON file to send; fields that the sender always sets are added. Default: a sample event.",
)
@click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="Option of the source, as in --option id=order.id; separate the items of a list by commas.",
)
@json_option
@click.pass_obj
def test(
    target: LedgerTarget, source: str, url: str, secret_env: str, event: Path | None, options: tuple[str, ...]
) -> None:
    """Send a signed sample event to a running server, and show its response.

    SOURCE is the kind of sender: stripe, github, shopify, generic and so on.
    """
    sender = _source(source, url, options)
    sample = sender.sample(_secret(secret_env), time.time(), _payload(event))
    response = post_delivery(url, sample, sender.deadline)
    if target.json:
        show_json({"test": {"source": sender.name, "url": url, "sent_bytes": len(sample.body), **response.shape()}})
    else:
        _show_response(sender, response, secret_env)
    if not response.ok:
        raise click.exceptions.Exit(NEGATIVE)


def _source(name: str, url: str, options: tuple[str, ...]) -> Source:
    from inspect import signature

    from ..inbound.sources import find_source, source_class

    given: dict[str, Any] = {}
    for option in options:
        word, sign, value = option.partition("=")
        if not sign:
            raise Misuse(f"--option {option!r} has no value; write it as --option NAME=VALUE.")
        given[word] = value.split(",") if word in LISTS else value
    if "url" in signature(source_class(name)).parameters:  # this sender signs the URL, too
        given.setdefault("url", url)
    return find_source(name, **given)


def _secret(name: str) -> str:
    secret = os.environ.get(name, "").strip()
    if not secret:
        raise Misuse(f"The environment variable {name} is not set; set it to the secret that the server has.")
    return secret


def _payload(path: Path | None) -> Any:
    if path is None:
        return None
    from ..inbound.source import Poison
    from ..inbound.sources.parsing import parse_json

    try:
        value = parse_json(path.read_bytes())
    except OSError as error:
        raise Misuse(f"{path} cannot be read ({error.strerror}); name a JSON file with --event.") from None
    if isinstance(value, Poison):
        raise Misuse(f"{path} cannot be sent: {value.reason}; correct the file.")
    return value


def _show_response(sender: Source, response: DeliveryResponse, secret_env: str) -> None:
    late = f"  (late: {sender.name} waits {sender.deadline:g} s)" if response.seconds > sender.deadline else ""
    show_pairs(
        [
            ("status", response.status),
            ("took", f"{response.seconds:.3f} s{late}"),
            ("response", response.text or "-"),
        ]
    )
    if response.status == 401:
        show_text(
            "There is no such webhook, or the signature was refused; "
            f"check the URL, and that the server has the secret in {secret_env}."
        )
    elif response.status == 404:
        show_text("There is no webhook at this URL; list them with: twiceproof hooks list MODULE:APP")
    elif response.is_dead_letter:
        show_text("The signature is valid, but the event is a dead letter; see why: twiceproof hooks dead-letters")


EPILOG = """\b
Examples:
  twiceproof hooks list shop:app
  twiceproof hooks dead-letters
  twiceproof hooks replay shop:app --all
"""


@click.group(epilog=EPILOG)
def hooks() -> None:
    """List and test webhooks, and replay dead letters."""


for _command in (list_, test, dead_letters, replay):
    hooks.add_command(_command)
