"""Hooks list|test|letters|replay."""

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
from ..inbound.envelope import Envelope
from ..operations import block
from .failures import NEGATIVE, NoAnswer
from .output import moment, show_json, show_pairs, show_table, show_text, span
from .target import LedgerTarget, json_option, no_store, opened, target_options, tenant_option

if TYPE_CHECKING:
    from ..app.app import App
    from ..inbound.hook import Hook
    from ..inbound.source import Source

__all__ = ["DeliveryAnswer", "dead_letters", "hooks", "list_", "post_delivery", "replay", "test"]


LETTERS_HEAD = ("LETTER", "WEBHOOK", "RECEIVED", "BYTES", "WHY")
LETTERS_EPILOG = """\b
Examples:
  twiceproof hooks dead-letters
  twiceproof hooks dead-letters --hook stripe --json
"""


@click.command(epilog=LETTERS_EPILOG)
@click.option("--hook", metavar="NAME", default="", help="Only those of this webhook.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@target_options
@click.pass_obj
def dead_letters(target: LedgerTarget, hook: str, limit: int) -> None:
    """List what was kept aside, the newest first. It is kept for 30 days."""
    with opened(target) as store:
        found = block(kept_letters(store, validate_name("tenant", target.tenant), hook))
    if target.json:
        show_json({"dead_letters": [_letter_shape(letter) for letter in found[:limit]], "more": len(found) > limit})
        return
    if not found:
        show_text("Nothing was kept aside.")
        return
    show_table(LETTERS_HEAD, [(x.id, x.hook, moment(x.received_at), x.size, _why(x)) for x in found[:limit]])
    if len(found) > limit:
        show_text(f"There are {len(found) - limit} more; say --limit {limit * 10}.")
    show_text("When what stood in the way is gone: twiceproof hooks replay MODULE:APP LETTER")


def _why(letter: DeadLetter) -> str:
    return (
        f"{letter.reason} ({len(letter.refused_events):,} events)" if len(letter.refused_events) > 1 else letter.reason
    )


def _letter_shape(letter: DeadLetter) -> dict[str, Any]:
    """Without its body: it may hold what is nobody's business."""
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


HOOKS_HEAD = ("PATH", "SOURCE", "FLOW", "TRIES FOR", "KEPT FOR", "SECRET")
LIST_EPILOG = """\b
Example:
  twiceproof hooks list shop:app
The exit code is 1 if a webhook has no secret, or forgets events before their
sender gives up. Secrets themselves are never shown.
"""


@click.command("list", epilog=LIST_EPILOG, short_help="List the webhooks of an app.")
@click.argument("app", metavar="MODULE:APP")
@json_option
@click.pass_obj
def list_(target: LedgerTarget, app: str) -> None:
    """List the webhooks of an app: who sends, what it starts, how long it is remembered."""
    from .load import load_app

    with load_app(app) as found:
        shapes = [_hook_shape(hook) for hook in found.hooks.values()]
    if target.json:
        show_json({"hooks": shapes})
    else:
        _show_hooks(app, shapes)
    if not all(shape["secret"] and shape["kept_long_enough"] for shape in shapes):
        raise click.exceptions.Exit(NEGATIVE)


def _hook_shape(hook: Hook) -> dict[str, Any]:
    keep = hook.policy.life.keep
    return {
        "name": hook.name,
        "path": f"/hooks/{hook.name}",
        "source": hook.source.name,
        "flow": hook.flow.name,
        "signed": hook.source.signed,
        "deadline": hook.source.deadline,
        "retry_window": hook.source.retry_window,
        "keep": keep,
        "kept_long_enough": keep is None or keep >= hook.source.retry_window,
        "secret": any(hook.secrets()),
    }


def _show_hooks(app: str, shapes: Sequence[dict[str, Any]]) -> None:
    if not shapes:
        show_text(f"{app} declares no webhooks; write app.webhook(SOURCE, secret=…, start=…).")
        return
    show_table(HOOKS_HEAD, [_row(shape) for shape in shapes])
    for shape in shapes:
        if not shape["secret"]:
            show_text(f"Nothing that {shape['name']} sends can be believed: set its secret.")
        if not shape["kept_long_enough"]:
            show_text(f"{shape['name']} may come again when its events are forgotten: give it a longer keep=.")


def _row(shape: dict[str, Any]) -> tuple[str, ...]:
    kept = "ever" if shape["keep"] is None else span(shape["keep"])
    secret = "set" if shape["secret"] else "MISSING"
    return shape["path"], shape["source"], shape["flow"], span(shape["retry_window"]), kept, secret


REPLAY_HEAD = ("LETTER", "OUTCOME", "RUN OR REASON")
REPLAY_EPILOG = """\b
Examples:
  twiceproof hooks replay shop:app ltr_1f0c2d…
  twiceproof hooks replay shop:app --all --hook stripe
The exit code is 1 if one of them still cannot be taken in; it is then kept.
"""


@click.command(epilog=REPLAY_EPILOG, short_help="Read deliveries again that were kept aside.")
@click.argument("app", metavar="MODULE:APP")
@click.argument("letter", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that were kept aside, the oldest first.")
@click.option("--hook", metavar="NAME", default="", help="With --all: only those of this webhook.")
@tenant_option
@json_option
@no_store
@click.pass_obj
def replay(target: LedgerTarget, app: str, letter: tuple[str, ...], everything: bool, hook: str) -> None:
    """Read deliveries again that were kept aside, and start what they say.

    They were believed when they came, and are claimed under the same ids: what was taken in meanwhile is a duplicate.
    """
    from .load import load_app

    if bool(letter) is everything:
        raise Misuse("Name the letters to replay, or say --all; list them with: twiceproof hooks dead-letters")
    with load_app(app) as found:
        tenants = found.of(target.given_tenant) if target.given_tenant else found
        names = letter or _all(tenants, hook)
        shapes = [shape for name in names for shape in _replayed(tenants, name)]
    if target.json:
        show_json({"replayed": shapes})
    elif not shapes:
        show_text("Nothing was kept aside.")
    else:
        show_table(REPLAY_HEAD, [(s["letter"], s["outcome"], s["run"] or s["reason"]) for s in shapes])
    if any(shape["outcome"] in ("refused", "poison", "mismatch", "busy", "failed") for shape in shapes):
        raise click.exceptions.Exit(NEGATIVE)


def _all(app: App, hook: str) -> list[str]:
    from ..inbound.dead_letters import letters
    from ..operations import block

    return [letter.id for letter in reversed(block(letters(app.store, app.settings.tenant, hook)))]


def _replayed(app: App, name: str) -> list[dict[str, Any]]:
    """One line for each event in it. What cannot be read does not stop the others."""
    from ..inbound.admit import replay_letter
    from ..operations import block

    try:
        admitted = block(replay_letter(app.parts, app.hooks, name))
    except (Misuse, ResultNotKept) as error:
        return [{"letter": name, "event": "", "outcome": "refused", "run": "", "reason": str(error)}]
    return [
        {"letter": name, "event": one.event, "outcome": one.outcome, "run": one.run, "reason": one.reason}
        for one in admitted
    ]


PATIENCE = 30.0  # seconds; a late answer is worth more than none
LONGEST = 4_000
UNSENT = re.compile("[^!-~]")  # what may not stand in a request line as it is
KEPT_ASIDE = ("poison", "mismatch")


class Said(Struct, frozen=True):
    state: str = ""


class DeliveryAnswer(Struct, frozen=True):
    status: int
    seconds: float
    text: str

    @property
    def welcome(self) -> bool:
        return 200 <= self.status < 300 and not self.kept_aside

    @property
    def kept_aside(self) -> bool:
        """Acknowledged, so that it does not come for days; but nothing was started."""
        try:
            return msgspec.json.decode(self.text, type=Said).state in KEPT_ASIDE
        except msgspec.MsgspecError:
            return False

    def shape(self) -> dict[str, Any]:
        return {"status": self.status, "seconds": round(self.seconds, 6), "answer": self.text}


def post_delivery(url: str, sample: Envelope, deadline: float) -> DeliveryAnswer:
    connection, target = _door(url, sample.query, max(PATIENCE, deadline))
    begun = time.monotonic()
    try:
        connection.request("POST", target, sample.body, sample.headers)
        response = connection.getresponse()
        body = response.read(LONGEST)
    except (OSError, http.client.HTTPException) as error:
        why = type(error).__name__ if not str(error) else str(error)
        raise NoAnswer(f"No server answered at {url} ({why}); start one with: twiceproof serve MODULE:APP") from None
    finally:
        connection.close()
    return DeliveryAnswer(response.status, time.monotonic() - begun, body.decode("utf-8", "replace"))


def _door(url: str, query: str, patience: float) -> tuple[http.client.HTTPConnection, str]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as the connection will; a name that cannot be asked for is no fault of the server
    except ValueError:
        host, port = "", None
    if not host or parts.scheme not in ("http", "https") or UNSENT.search(f"{parts.path}?{parts.query}"):
        raise Misuse(
            f"{url!r} is no URL to send to; write it like http://127.0.0.1:8000/hooks/stripe, other letters "
            "percent-encoded."
        )
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    asked = "&".join(part for part in (parts.query, query) if part)
    return kind(host, port, timeout=patience), (parts.path or "/") + (f"?{asked}" if asked else "")


LISTS = ("fingerprint", "origins", "hosts", "certificate")
TEST_EPILOG = """\b
Examples:
  twiceproof hooks test stripe --url http://127.0.0.1:8000/hooks/stripe --secret-env STRIPE_SECRET
  twiceproof hooks test github --url … --secret-env GITHUB_SECRET --event push.json
  twiceproof hooks test generic --url … --secret-env SECRET --option id=order.id --option signature=X-Sig
The same event has the same id: sent a second time, it is a duplicate.
Exit codes: 0 taken in, or a duplicate; 1 not believed, kept aside, or no answer.
"""


@click.command(epilog=TEST_EPILOG, short_help="Send a signed sample to a running server.")
@click.argument("source")
@click.option("--url", metavar="URL", required=True, help="Where the server listens, as the sender would call it.")
@click.option(
    "--secret-env",
    metavar="NAME",
    required=True,
    help="The environment variable that holds the secret. On the command line itself everybody could read it.",
)
@click.option(
    "--event",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What to send, as JSON; what it lacks of the sender's form is added.",
)
@click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of the source, as in --option id=order.id; lists are separated by commas.",
)
@json_option
@click.pass_obj
def test(
    target: LedgerTarget, source: str, url: str, secret_env: str, event: Path | None, options: tuple[str, ...]
) -> None:
    """Send a correctly signed sample to a running server, and show what it answers.

    SOURCE is stripe, github, shopify and so on. What FILE lacks of the sender's form is added to it.
    """
    sender = _source(source, url, options)
    sample = sender.sample(_secret(secret_env), time.time(), _payload(event))
    answer = post_delivery(url, sample, sender.deadline)
    if target.json:
        show_json({"test": {"source": sender.name, "url": url, "sent": len(sample.body), **answer.shape()}})
    else:
        _show_answer(sender, answer, secret_env)
    if not answer.welcome:
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
    if "url" in signature(source_class(name)).parameters:  # its sender signs the URL too
        given.setdefault("url", url)
    return find_source(name, **given)


def _secret(name: str) -> str:
    secret = os.environ.get(name, "").strip()
    if not secret:
        raise Misuse(f"The environment variable {name} is not set; export it with the secret that the server has.")
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


def _show_answer(sender: Source, answer: DeliveryAnswer, secret_env: str) -> None:
    late = f"  (late: {sender.name} waits {sender.deadline:g} s)" if answer.seconds > sender.deadline else ""
    show_pairs(
        [
            ("status", answer.status),
            ("took", f"{answer.seconds:.3f} s{late}"),
            ("answer", answer.text or "-"),
        ]
    )
    if answer.status == 401:
        show_text(f"It was not believed: is the server's secret the one in {secret_env}, and is this its webhook?")
    elif answer.status == 404:
        show_text("There is nothing at this URL; webhooks are at /hooks/NAME: twiceproof hooks list MODULE:APP")
    elif answer.kept_aside:
        show_text("It was believed, but not taken in: see why with: twiceproof hooks dead-letters")


EPILOG = """\b
Examples:
  twiceproof hooks list shop:app                 which senders, and is their secret set?
  twiceproof hooks dead-letters                       what could not be taken in, and why
"""


@click.group(epilog=EPILOG, short_help="Look at webhooks, try one out, replay what was kept aside.")
def hooks() -> None:
    """Look at webhooks, try one out, and replay what could not be taken in."""


for command in (list_, test, dead_letters, replay):
    hooks.add_command(command)
