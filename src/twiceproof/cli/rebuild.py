"""`twiceproof rebuild plan|apply`: record in the ledger what the source of truth has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from ..errors import Misuse
from ..reconcile.readers import csv_rows, json_rows
from ..reconcile.rebuild_plan import WRITES, RebuildLine, RebuildPlan, read_plan
from ..safe_text import suggested_command
from .load import load_app
from .output import counted, show_json, show_table, show_text
from .target import LedgerTarget, json_option, no_target

__all__ = ["apply", "plan", "rebuild"]

SHOWN = 20  # lines of a plan that are shown
MEANINGS = {
    "adopt": "in the source, not in the ledger: recorded as done",
    "settle": "outcome unknown, and the source has it: settled as happened",
    "unchanged": "both have it",
    "differs": "both have it, with other results: evidence, and a finding",
    "missing": "done in the ledger, not in the source: evidence, and a finding",
    "absent": "outcome unknown, and not in the source: evidence; a person decides",
    "failed": "failed in the ledger, and the source has it: evidence, and a finding",
    "left": "under way, or stopped for another reason: left alone",
    "twice": "several times in the source, and none on record: left to a person",
    "no-key": "a row without a key",
}

PLAN_EPILOG = """\b
Examples:
  twiceproof rebuild plan shop:app sync --from books.csv --key "order:{ref}" --step invoice=id --out plan.jsonl
  twiceproof rebuild plan shop:app charge --from charges.jsonl --key "charge:{order}" --result id,amount
A result is made of the columns that are named: one column gives its value,
several give an object. A step's result is always an object.
Exit codes: 1 if the plan has something to record.
"""


@click.command("plan", epilog=PLAN_EPILOG, short_help="Compare the source of truth with the ledger.")
@click.argument("app")
@click.argument("operation")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="CSV or JSON lines file to read.",
)
@click.option("--key", required=True, help="Template of the operation's key, with the columns of a row as its fields.")
@click.option("--step", "steps", multiple=True, metavar="NAME=COLUMNS", help="Columns that are a step's result.")
@click.option("--result", metavar="COLUMNS", help="Columns that are the operation's result.")
@click.option("--part", is_flag=True, help="The file is only a part of the source: report nothing as missing.")
@click.option("--as-of", metavar="TIME", help="When reading the source began, such as 2026-03-02T12:00:00Z.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan to this file.")
@no_target
@json_option
@click.pass_obj
def plan(target: LedgerTarget, /, app: str, operation: str, source: Path, key: str, **options: Any) -> None:
    """Compare a CSV or JSON lines export of the source of truth with the ledger, and write a plan.

    Nothing is written to the ledger.
    """
    steps = dict(_step(text) for text in options["steps"])
    result = None if options["result"] is None else _columns(options["result"])
    whole = not options["part"]
    as_of = None if options["as_of"] is None else _moment(options["as_of"])
    with load_app(app) as found:
        made = found.rebuild(operation, _rows(source), key=key, result=result, steps=steps, whole=whole, as_of=as_of)
    if options["out"] is not None:
        made.save(options["out"])
    _show(target, made, app, options["out"])
    if any(line.action in WRITES for line in made.lines):
        raise click.exceptions.Exit(1)


APPLY_EPILOG = """\b
Examples:
  twiceproof rebuild apply shop:app plan.jsonl
  twiceproof rebuild apply shop:app plan.jsonl --settle-absent 20
Lines whose key has changed since the plan was made are skipped.
"""


@click.command("apply", epilog=APPLY_EPILOG, short_help="Apply a plan to the ledger.")
@click.argument("app")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--settle-absent",
    metavar="COUNT",
    type=click.IntRange(1),
    help="Settle up to COUNT unknown outcomes that the source lacks as not having happened, so they are done again. "
    "Needs a plan with --as-of; with more of them in it, nothing is applied.",
)
@click.option(
    "--fresh",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A second plan, made just now: keys about which the source has changed since are skipped.",
)
@click.option(
    "--changed",
    metavar="COUNT",
    type=click.IntRange(0),
    default=0,
    help="Skip up to COUNT keys because of --fresh; with more of them, nothing is applied.  [default: 0]",
)
@no_target
@json_option
@click.pass_obj
def apply(
    target: LedgerTarget, app: str, file: Path, settle_absent: int | None, fresh: Path | None, changed: int
) -> None:
    """Apply the plan FILE to the ledger.

    Recorded results are not changed; a second time nothing is written.
    """
    with load_app(app) as found:
        plan = read_plan(file)
        done = found.apply_rebuild(plan, settle_absent=settle_absent or 0, fresh=fresh, changed=changed)
    if target.json:
        show_json({"applied": done.applied, "skipped": list(done.skipped)})
        return
    for action, count in done.applied.items():
        show_text(f"{action}: {counted(count, 'key')}")
    skipped = len(done.skipped)
    if skipped:
        show_text(f"{counted(skipped, 'key')} skipped: recorded before, or changed since the plan was made.")


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Misuse(f"--as-of {text!r:.60} is not a time; write 2026-03-02T12:00:00Z.") from None


def _rows(path: Path) -> Iterable[Mapping[str, Any]]:
    """Read rows: CSV with a head line, or JSON lines. A file that was cut off makes no plan."""
    return csv_rows(path) if path.suffix == ".csv" else json_rows(path)


def _step(text: str) -> tuple[str, Callable[[Mapping[str, Any]], Any]]:
    name, sign, columns = text.partition("=")
    if not (name and sign and columns):
        raise Misuse(f"--step {text!r} is not NAME=COLUMNS; write --step create_invoice=id,total.")
    return name, _columns(columns, alone=False)


def _columns(text: str, *, alone: bool = True) -> Callable[[Mapping[str, Any]], Any]:
    names = text.split(",")

    def make(row: Mapping[str, Any]) -> Any:
        lacking = [name for name in names if name not in row]
        if lacking:
            raise Misuse(f"The source has no column {', '.join(lacking)}; it has {', '.join(map(str, row))}.")
        return row[names[0]] if alone and len(names) == 1 else {name: row[name] for name in names}

    return make


def _show(target: LedgerTarget, made: RebuildPlan, app: str, out: Path | None) -> None:
    if target.json:
        show_json({"plan": str(out) if out else None, "hash": made.head.hash, "counts": made.counts})
        return
    show_table(("ACTION", "KEYS", "MEANING"), [(name, count, MEANINGS[name]) for name, count in made.counts.items()])
    for line in _remarkable(made):
        show_text(f"{line.action}  {line.key}  {line.why}".rstrip())
    if out is not None:
        show_text(f"The plan is in {out}; look at it, then: {suggested_command('rebuild', 'apply', app, str(out))}")


def _remarkable(made: RebuildPlan) -> list[RebuildLine]:
    return [line for line in made.lines if line.why][:SHOWN]


@click.group("rebuild")
def rebuild() -> None:
    """Record in the ledger what an export shows as done."""


for _command in (plan, apply):
    rebuild.add_command(_command)
