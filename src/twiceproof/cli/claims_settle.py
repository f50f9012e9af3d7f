"""`twiceproof claims settle`: a person's word about an unknown outcome."""

from __future__ import annotations

from typing import Any

import click
from msgspec import Raw

from ..claims.claim import DONE, FAILED, NO_RESULT, Settlement
from ..claims.claims import Claims
from ..claims.outcomes import Done
from ..claims.pieces import run_or_claim
from ..drive import Operation, block
from ..records import Address
from ..stores.base import Store
from .claim_look import named_address, require_claim
from .ledger import opened
from .output import show_json, show_text
from .target import Target, target_options
from .word import login_name, read_result

__all__ = ["settle", "settle_claim"]

VERDICTS = {
    "happened": "is done; whoever delivers it again gets the recorded result.",
    "did-not-happen": "may be tried again; the next delivery does the work.",
    "abandon": "is failed for good; only .retry(…) or another settlement runs it again.",
}
NO_RESULT_GIVEN = (
    "is done, without a result: whoever delivers it again is told that it is done and that its result is not kept. "
    "Where nothing is returned, say --result null."
)

EPILOG = """\b
Examples:
  twiceproof claims settle ship order:17 --happened --result '{"parcel": "P-1"}'
  twiceproof claims settle ship order:17 --happened --result @answer.json
  twiceproof claims settle ship order:17 --did-not-happen --note "asked the carrier"
  twiceproof claims settle ship order:17 --abandon
"""


@click.command(epilog=EPILOG, short_help="Say what happened, where a claim's outcome is unknown.")
@click.argument("operation")
@click.argument("key")
@click.option("--happened", is_flag=True, help="It happened: record it as done.")
@click.option("--did-not-happen", is_flag=True, help="It did not happen: let it be tried again.")
@click.option("--abandon", is_flag=True, help="Leave it, whatever happened, and never try it again.")
@click.option(
    "--result",
    metavar="JSON|@FILE|-",
    help="With --happened: what the work returned; @FILE reads it from a file, `-` from stdin.",
)
@click.option("--note", default="", metavar="TEXT", help="Why: kept with the claim.")
@click.option("--by", metavar="NAME", help="Whose word this is. Default: your login name.")
@target_options
@click.pass_obj
def settle(
    target: Target, /, operation: str, key: str, result: str | None, note: str, by: str | None, **flags: bool
) -> None:
    """Settle a claim whose outcome is unknown: it happened, it did not, or it is abandoned."""
    verdict = _one_verdict(flags)
    if result is not None and verdict != "happened":
        raise click.UsageError("--result goes with --happened: what did not happen has no result.")
    raw = NO_RESULT if result is None else read_result(result)
    at = named_address(target.tenant, operation, key)
    with opened(target) as store:
        word = block(settle_claim(target, store, at, verdict, by=by or login_name(), note=note, result=raw))
    _tell(target, {"operation": operation, "key": key, "tenant": target.tenant, **word})


def settle_claim(
    target: Target, store: Store, at: Address, verdict: str, *, by: str, note: str = "", result: Raw = NO_RESULT
) -> Operation[dict[str, Any]]:
    """Settle what is there; the settlement carries the store's time, as everything in the ledger does."""
    found = yield from run_or_claim(store, at.space)
    require_claim(target, found)
    word = Settlement(verdict, by, found.now, note)
    outcome = yield from Claims(store).settle(at, word, result=result, where=target.words())
    state = DONE if isinstance(outcome, Done) else FAILED
    return {"state": state, "verdict": verdict, "by": by, "note": note, "result_kept": bool(result)}


def _tell(target: Target, word: dict[str, Any]) -> None:
    if target.json:
        show_json({"settled": word})
        return
    silent = word["verdict"] == "happened" and not word["result_kept"]
    show_text(f"{word['operation']} {word['key']} {NO_RESULT_GIVEN if silent else VERDICTS[word['verdict']]}")


def _one_verdict(flags: dict[str, bool]) -> str:
    given = [name.replace("_", "-") for name, said in flags.items() if said]
    if len(given) != 1:
        raise click.UsageError("Say what happened, with exactly one of --happened, --did-not-happen, --abandon.")
    return given[0]
