"""Claims list|show|settle|release|sweep."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec
from msgspec import Raw, structs

from ..claims.claim import DONE, FAILED, HELD, NO_RESULT, QUEUED, REVIEW, RUN, WAITING, Done, Settlement, validate_name
from ..claims.manager import ClaimManager
from ..claims.retention import Swept, run_or_claim, sweep
from ..clock import system_clock
from ..operations import Operation, block
from ..records import Address
from ..settings import from_environment
from ..stores.base import Store
from .claim_views import (
    EVERY_STATE,
    OPEN_STATES,
    ClaimEvidenceShape,
    ClaimPage,
    ClaimShape,
    LongClaimShape,
    Look,
    list_claims,
    look_at,
    named_address,
    require_claim,
    short_shape,
)
from .doctor import clear_orphans
from .output import Progress, clean, moment, show_json, show_pairs, show_table, show_text, span
from .prompts import confirm, login_name, read_result
from .target import LedgerTarget, command, load_record_kinds, opened, target_options

__all__ = ["claims", "list_", "release", "settle", "settle_claim", "show", "sweep_"]


HEAD = ("OPERATION", "KEY", "STATE", "ATTEMPT", "OWNER", "AGE", "LEASE LEFT", "RUN")
LESS = ("RUN", "OWNER")  # left out, in this order, where a terminal is too narrow: `claims show` has them
GAP = 3  # between two columns, at most

LIST_EPILOG = """\b
Examples:
  twiceproof claims list
  twiceproof claims list --state review
  twiceproof claims list --operation ship --state all --json
"""


@click.command("list", epilog=LIST_EPILOG, short_help="List claims: what is not done, reviews first.")
@click.option("--operation", metavar="NAME", help="Only claims of this operation.")
@click.option(
    "--state",
    type=click.Choice([*EVERY_STATE, "all"]),
    help="Only claims in this state. Default: all but done, those in review first.",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", metavar="CURSOR", help="Go on where an earlier answer ended.")
@target_options
@click.pass_obj
def list_(target: LedgerTarget, operation: str | None, state: str | None, limit: int, after: str | None) -> None:
    """List claims: what is not done, reviews first; done ones if asked for."""
    prefix = f"{validate_name('tenant', target.tenant)}/"
    if operation is not None:
        prefix += f"{validate_name('operation', operation)}/"
    states = EVERY_STATE if state == "all" else (state,) if state else OPEN_STATES
    with opened(target) as store:
        page = block(list_claims(store, states, prefix, limit=limit, after=after))
    if target.json:
        show_json(page)
    else:
        _show_list(target, page, state, operation, limit)


def _show_list(target: LedgerTarget, page: ClaimPage, state: str | None, operation: str | None, limit: int) -> None:
    if page.claims:
        rows = [
            (c.operation, c.key, c.word, c.attempt, c.owner, span(c.age), span(c.lease_left), c.run)
            for c in page.claims
        ]
        show_table(*_fitting(HEAD, rows))
    else:
        show_text("No claims." if state else "No claims that are not done.")
    same = ["--operation", operation] if operation else []
    if page.after is not None:
        chosen = [*(["--state", state] if state else []), "--limit", str(limit)]
        show_text(f"There is more: {command(target, 'claims', 'list', *same, *chosen, '--after', page.after)}")
    if state is None:
        show_text(f"Done ones are not shown: {command(target, 'claims', 'list', *same, '--state', 'done')}")


def _fitting(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Whole lines on a terminal: folded into three or four each, a list can no longer be read down. Pipes get all."""
    columns = [[clean(cell) for cell in column] for column in zip(head, *rows, strict=True)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for name in LESS:
        if room is None or sum(GAP + max(map(len, column)) for column in columns) <= room:
            break
        columns = [column for column in columns if column[0] != name]
    head, *rows = zip(*columns, strict=True)
    return head, rows


RELEASE_EPILOG = """\b
Examples:
  twiceproof claims release ship order:17
  twiceproof claims release ship order:17 --force --yes
If you know what happened, settle the claim instead: that leaves a trace.
"""


@click.command(epilog=RELEASE_EPILOG, short_help="Forget a claim and its result.")
@click.argument("operation")
@click.argument("key")
@click.option("--force", is_flag=True, help="Even if somebody holds it: its work may then be done twice.")
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal to ask on.")
@target_options
@click.pass_obj
def release(target: LedgerTarget, operation: str, key: str, force: bool, yes: bool) -> None:
    """Forget a claim and its result: the next delivery does the work again."""
    at = named_address(target.tenant, operation, key)
    with opened(target) as store:
        found = block(run_or_claim(store, at.space))
        record = require_claim(target, found)
        confirm(_question(short_shape(record, found.now), is_run=record.at.kind == RUN), yes=yes)
        released = block(ClaimManager(store).free(record.at, force=force))
    if target.json:
        show_json({"released": released, "operation": operation, "key": key, "tenant": target.tenant})
    else:
        show_text(f"{operation} {key} is forgotten; the next delivery does the work.")


def _question(claim: ClaimShape, *, is_run: bool) -> str:
    steps = ": it is a run, and all its steps act again, also those declared never to be repeated" if is_run else ""
    return f"Forget {claim.operation} {claim.key}, which is {claim.word}? The next delivery does its work again{steps}"


VERDICTS = {
    "happened": "is done; whoever delivers it again gets the recorded result.",
    "did-not-happen": "may be tried again; the next delivery does the work.",
    "abandon": "is failed for good; only .retry(…) or another settlement runs it again.",
}
NO_RESULT_GIVEN = (
    "is done, without a result: whoever delivers it again is told that it is done and that its result is not kept. "
    "Where nothing is returned, say --result null."
)

SETTLE_EPILOG = """\b
Examples:
  twiceproof claims settle ship order:17 --happened --result '{"parcel": "P-1"}'
  twiceproof claims settle ship order:17 --happened --result @answer.json
  twiceproof claims settle ship order:17 --did-not-happen --note "asked the carrier"
  twiceproof claims settle ship order:17 --abandon
"""


@click.command(epilog=SETTLE_EPILOG, short_help="Say what happened, where a claim's outcome is unknown.")
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
    target: LedgerTarget, /, operation: str, key: str, result: str | None, note: str, by: str | None, **flags: bool
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
    target: LedgerTarget, store: Store, at: Address, verdict: str, *, by: str, note: str = "", result: Raw = NO_RESULT
) -> Operation[dict[str, Any]]:
    """Settle what is there; the settlement carries the store's time, as everything in the ledger does."""
    found = yield from run_or_claim(store, at.space)
    require_claim(target, found)
    word = Settlement(verdict, by, found.now, note)
    outcome = yield from ClaimManager(store).settle(at, word, result=result, where=target.words())
    state = DONE if isinstance(outcome, Done) else FAILED
    return {"state": state, "verdict": verdict, "by": by, "note": note, "result_kept": bool(result)}


def _tell(target: LedgerTarget, word: dict[str, Any]) -> None:
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


LONGEST_RESULT = 2_000  # letters, for people; --json gives all of it

SHOW_EPILOG = """\b
Examples:
  twiceproof claims show ship order:17
  twiceproof claims show ship order:17 --json
A key that begins with a dash follows two: twiceproof claims show ship -- -17
"""


@click.command(epilog=SHOW_EPILOG)
@click.argument("operation")
@click.argument("key")
@target_options
@click.pass_obj
def show(target: LedgerTarget, operation: str, key: str) -> None:
    """Show everything about one claim, and the next move."""
    at = named_address(target.tenant, operation, key)
    with opened(target) as store:
        look = block(look_at(target, store, at))
    moves = list(_moves(target, look))
    if target.json:
        show_json({"claim": look.claim, "evidence": look.evidence, "next": [move for _, move in moves]})
    else:
        _show_claim(look, moves)


def _moves(target: LedgerTarget, look: Look) -> Iterator[tuple[str, str]]:
    if look.claim is not None:
        yield from _run_moves(target, look.claim) if look.is_run else _next_moves(target, look.claim)


def _show_claim(look: Look, moves: list[tuple[str, str]]) -> None:
    if look.claim is None:
        show_text("There is no claim any more: it was released, or its time is over. The next delivery does the work.")
    else:
        show_pairs(list(_pairs(look.claim)))
    for piece in look.evidence:
        show_text("\nEvidence from a holder that had lost the claim:")
        show_pairs(list(_evidence_pairs(piece)))
    for why, move in moves:
        show_text(f"\n{why}\n  {move}")


def _pairs(claim: LongClaimShape) -> Iterator[tuple[str, Any]]:
    yield "operation", claim.operation
    yield "key", claim.key
    yield "tenant", claim.tenant
    yield "state", claim.word
    if claim.reason and claim.state in (REVIEW, QUEUED, WAITING):
        yield "reason", claim.reason
    yield "attempt", claim.attempt
    yield "owner", claim.owner
    yield "run", claim.run or "-"
    yield "link", claim.link or "-"
    yield "fingerprint", claim.fingerprint or "-"
    yield "fence", claim.fence
    yield "created", f"{moment(claim.created_at)} ({span(claim.age)} ago)"
    yield "changed", moment(claim.updated_at)
    if claim.lease_left is not None:
        yield "lease", f"until {moment(claim.lease_until)} ({span(claim.lease_left)} left)"
    if claim.result_until is not None:
        yield "result until", moment(claim.result_until)
    if claim.kept_until is not None:
        yield "kept until", moment(claim.kept_until)
    yield from _findings(claim)
    if claim.settled:
        word = claim.settled
        yield "settled", f"{word['verdict']}, by {word['by']}, {moment(word['at'])}"
        if word["note"]:
            yield "note", word["note"]


def _evidence_pairs(piece: ClaimEvidenceShape) -> Iterator[tuple[str, Any]]:
    yield "owner", piece.owner
    yield "fence", piece.fence
    yield "seen", moment(piece.seen_at)
    yield from _findings(piece)


def _findings(found: LongClaimShape | ClaimEvidenceShape) -> Iterator[tuple[str, Any]]:
    """A result and a fault, of the claim itself or of a late holder."""
    if found.result is not None:
        yield "result", _shortened(msgspec.json.format(bytes(found.result), indent=2).decode())
    elif found.spill:
        yield (
            "result",
            f"not kept: {found.spill['reason'] or 'its time is over'} (sha256 {found.spill['digest'] or '-'})",
        )
    elif getattr(found, "state", "") == DONE:
        yield "result", "none was recorded, or its time is over"
    if found.fault:
        retry = "may be tried again" if found.fault["retryable"] else "is not tried again by itself"
        yield "fault", f"{found.fault['type']}: {found.fault['message']} ({retry})"


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_RESULT:
        return text
    return f"{text[:LONGEST_RESULT]}\n… {len(text) - LONGEST_RESULT:,} letters more: --json gives all of it"


def _run_moves(target: LedgerTarget, claim: LongClaimShape) -> Iterator[tuple[str, str]]:
    """A run has steps, and each its own outcome."""
    yield "This is a run. Its steps, and what to do next:", command(target, "runs", "show", about=(claim.run,))


def _next_moves(target: LedgerTarget, claim: LongClaimShape) -> Iterator[tuple[str, str]]:
    """Why, and what to type."""
    about = (claim.operation, claim.key)

    def settle(*words: str) -> str:
        return command(target, "claims", "settle", *words, about=about)

    if claim.state == REVIEW or claim.lapsed:
        yield "If it happened (with what it returned):", settle("--happened", "--result", "JSON")
        yield "If it did not, and may be tried again:", settle("--did-not-happen")
        yield "If it shall never be tried again:", settle("--abandon")
    elif claim.state == FAILED and not (claim.fault and claim.fault["retryable"]):
        yield "To let the next delivery try again:", settle("--did-not-happen")
    elif claim.state == HELD:
        yield (
            "Somebody is at work. If you know that it is gone:",
            command(target, "claims", "release", "--force", about=about),
        )


SWEEP_EPILOG = """\b
Example:
  twiceproof claims sweep
  TWICEPROOF_RESOURCES=dir:///var/lib/shop twiceproof claims sweep --orphans
Running apps sweep by themselves, a little at a time; this does all of it at once.
"""


@click.command("sweep", epilog=SWEEP_EPILOG, short_help="Forget finished claims whose time is over.")
@target_options
@click.option(
    "--orphans",
    is_flag=True,
    help="Also remove large values that no run knows of, older than a day, from where TWICEPROOF_RESOURCES says.",
)
@click.pass_obj
def sweep_(target: LedgerTarget, orphans: bool) -> None:
    """Forget finished claims whose time to be kept is over, of all tenants."""
    total, lost = Swept(), 0
    load_record_kinds()
    with opened(target) as store, Progress("swept", quiet=target.json) as progress:
        while _count(swept := block(sweep(store))):
            total = Swept(*(a + b for a, b in zip(structs.astuple(total), structs.astuple(swept), strict=True)))
            progress.show(_count(total))
        if orphans:
            lost = clear_orphans(store, from_environment(os.environ).resources, system_clock)
    if target.json:
        show_json({**structs.asdict(total), "orphans": lost} if orphans else total)
    else:
        show_text(
            f"Forgot {total.forgotten} claims, dropped the results of {total.trimmed}, "
            f"removed {total.pieces} pieces beside them{f' and {lost} orphans' if orphans else ''}."
        )


def _count(swept: Swept) -> int:
    return sum(structs.astuple(swept))


@click.group()
def claims() -> None:
    """Look at claims, settle and forget them."""


for _command in (list_, show, settle, release, sweep_):
    claims.add_command(_command)
