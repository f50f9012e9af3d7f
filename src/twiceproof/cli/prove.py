"""`twiceproof prove`: plays a flow killed, paused, repeated, and compares the outside with that of one clean run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import Misuse
from ..keys.duration import seconds
from .failures import NEGATIVE, OK
from .output import show_json, show_table, show_text
from .progress import Progress
from .target import Target, target_options

if TYPE_CHECKING:
    from ..prove.report import Report
    from ..prove.worlds.world import World

__all__ = ["prove"]

EPILOG = """\b
Examples:
  twiceproof prove shop:sync_order --event order.json --files out
  twiceproof prove shop:sync_order --event order.json --calls shop:send_mail
  twiceproof prove shop:sync_order --event order.json --files out --scene lost-2
Exit codes: 0 safe to repeat, 1 not.
"""


@click.command(epilog=EPILOG, short_help="Show that a flow is safe to repeat, before it meets a customer.")
@click.argument("flow", metavar="MODULE:FLOW")
@click.option("--event", metavar="FILE", required=True, help="What the flow is given, as JSON.")
@click.option("--files", metavar="DIR", multiple=True, help="A directory that it writes into.")
@click.option("--calls", metavar="MODULE:FUNCTION", multiple=True, help="A function whose calls are the effect.")
@click.option("--time", "budget", metavar="TIME", help="How long it may take; what was not reached is said.")
@click.option("--depth", type=click.IntRange(1, 2), default=2, show_default=True, help="1: no second kill.")
@click.option("--scene", metavar="NAME", default="", help="Play this one alone.")
@click.option("--junit", metavar="FILE", help="Write the verdicts as JUnit XML.")
@target_options
@click.pass_context
def prove(
    ctx: click.Context, flow: str, event: str, files: tuple[str, ...], calls: tuple[str, ...], budget: str | None,
    depth: int, scene: str, junit: str | None,
) -> None:  # fmt: skip
    """Play a flow twice, eight times at once, killed at every point, paused, with answers lost; in private.

    After each play the outside must be as after one clean run, or the run must wait for a person.
    """
    from ..prove.prover import Prover
    from ..prove.target import spread, target_of
    from ..prove.worlds.world import Worlds
    from .load import load

    function = load(flow)
    args, kwargs = spread(function, _event(event))
    span = None if budget is None else seconds(budget, name="time")
    target = ctx.ensure_object(Target)
    as_json, store = target.json, target.url if target.given_store else "sqlite"
    with Progress("Playing", quiet=as_json) as progress:
        report = Prover(
            target_of(function, *args, **kwargs), Worlds(_worlds(files, calls)), store=store, only=scene, budget=span,
            depth=depth, shown=progress.show,
        ).run()  # fmt: skip
    if junit:
        from ..prove.junit import junit as written

        Path(junit).write_text(written(report), "utf-8")
    if as_json:
        show_json({"safe": report.good, "complete": report.complete, **_shape(report)})
    else:
        _show(report, flow, event, files, calls)
    ctx.exit(OK if report.good else NEGATIVE)


def _event(name: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(Path(name).read_bytes())
    except OSError as error:
        raise Misuse(f"{name} cannot be read ({error.strerror}); --event takes a JSON file.") from None
    except msgspec.DecodeError as error:
        raise Misuse(f"{name} is not JSON ({error}); correct it.") from None


def _worlds(files: tuple[str, ...], calls: tuple[str, ...]) -> list[World]:
    from ..prove.worlds.calls import Calls
    from ..prove.worlds.files import Files

    found: list[World] = [Files(Path(name)) for name in files]
    if calls:
        found.append(Calls(list(calls)))
    if not found:
        raise Misuse("Nothing is looked at; say what the effect is: --files DIR, or --calls module:function.")
    return found


def _shape(report: Report) -> dict[str, Any]:
    from msgspec import structs

    return structs.asdict(report)


def _show(report: Report, flow: str, event: str, files: tuple[str, ...], calls: tuple[str, ...]) -> None:
    from ..prove.picture import bad_rows, closing_line, group_rows, timeline

    show_text(f"{report.flow}, {report.key}: one clean run does this to the outside:")
    for what, count in report.expected.items():
        show_text(f"  {count} × {what}")
    show_text()
    show_table(("WHAT WAS PLAYED", "SCENES", "CAME TO"), group_rows(report))
    for step in report.unobserved:
        show_text(f"\nNot observed: {step} acted, and nothing that was looked at changed.")
    if report.bad:
        show_text()
        show_table(("SCENE", "WHAT WAS INJECTED", "VERDICT", "BESIDE ONE CLEAN RUN"), bad_rows(report))
        show_text(f"\nThe worst of them, {report.worst_scene}:")
        for line in timeline(report.worst):
            show_text(line)
        show_text(f"\nPlay it again: {_again(flow, event, files, calls, report.worst_scene)}")
    show_text(f"\n{closing_line(report)}")


def _again(flow: str, event: str, files: tuple[str, ...], calls: tuple[str, ...], scene: str) -> str:
    words = ["twiceproof", "prove", flow, "--event", event]
    words += [word for name in files for word in ("--files", name)]
    words += [word for name in calls for word in ("--calls", name)]
    return shlex.join([*words, "--scene", scene])
