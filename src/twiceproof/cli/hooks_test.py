"""`twiceproof hooks test`: a signed sample for a running server."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import Misuse
from .failures import NEGATIVE
from .knock import Answer, knock
from .output import show_json, show_pairs, show_text
from .target import Target, json_option

if TYPE_CHECKING:
    from ..doors.source import Source

__all__ = ["test"]

LISTS = ("fingerprint", "origins", "hosts", "certificate")
EPILOG = """\b
Examples:
  twiceproof hooks test stripe --url http://127.0.0.1:8000/hooks/stripe --secret-env STRIPE_SECRET
  twiceproof hooks test github --url … --secret-env GITHUB_SECRET --event push.json
  twiceproof hooks test generic --url … --secret-env SECRET --option id=order.id --option signature=X-Sig
The same event has the same id: sent a second time, it is a duplicate.
Exit codes: 0 taken in, or a duplicate; 1 not believed, kept aside, or no answer.
"""


@click.command(epilog=EPILOG, short_help="Send a signed sample to a running server.")
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
def test(target: Target, source: str, url: str, secret_env: str, event: Path | None, options: tuple[str, ...]) -> None:
    """Send a correctly signed sample to a running server, and show what it answers.

    SOURCE is stripe, github, shopify and so on. What FILE lacks of the sender's form is added to it.
    """
    sender = _source(source, url, options)
    sample = sender.sample(_secret(secret_env), time.time(), _payload(event))
    answer = knock(url, sample, sender.deadline)
    if target.json:
        show_json({"test": {"source": sender.name, "url": url, "sent": len(sample.body), **answer.shape()}})
    else:
        _show(sender, answer, secret_env)
    if not answer.welcome:
        raise click.exceptions.Exit(NEGATIVE)


def _source(name: str, url: str, options: tuple[str, ...]) -> Source:
    from inspect import signature

    from ..doors.sources.catalogue import find_source, source_class

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
    from ..doors.source import Poison
    from ..doors.sources.json_body import parse_json

    try:
        value = parse_json(path.read_bytes())
    except OSError as error:
        raise Misuse(f"{path} cannot be read ({error.strerror}); name a JSON file with --event.") from None
    if isinstance(value, Poison):
        raise Misuse(f"{path} cannot be sent: {value.reason}; correct the file.")
    return value


def _show(sender: Source, answer: Answer, secret_env: str) -> None:
    late = f"  (late: {sender.name} waits {sender.deadline:g} s)" if answer.seconds > sender.deadline else ""
    show_pairs([
        ("status", answer.status),
        ("took", f"{answer.seconds:.3f} s{late}"),
        ("answer", answer.text or "-"),
    ])  # fmt: skip
    if answer.status == 401:
        show_text(f"It was not believed: is the server's secret the one in {secret_env}, and is this its webhook?")
    elif answer.status == 404:
        show_text("There is nothing at this URL; webhooks are at /hooks/NAME: twiceproof hooks list MODULE:APP")
    elif answer.kept_aside:
        show_text("It was believed, but not taken in: see why with: twiceproof hooks letters")
