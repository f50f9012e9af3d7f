"""`twiceproof prove`: plays a flow killed, paused, repeated, and compares the outside with that of one clean run."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import Misuse
from ..keys.duration import seconds
from .failures import NEGATIVE, OK
from .output import show_json, show_table, show_text
from .progress import Progress
from .prove_outside import Outside, outside_options, read_json
from .target import Target, options_about

if TYPE_CHECKING:
    from ..prove.report import Report
    from ..prove.target import Target as Proved

__all__ = ["prove"]

EVENT_HELP = (
    "What the flow is given, as JSON: passed whole to one parameter, otherwise spread by name. "
    "Given again, a later event of the same object: they are delivered in every order."
)
STORE_HELP = (
    "Keep the plays' ledgers here: memory://, a PostgreSQL database (a schema of its own for each play), or an empty "
    "Redis database named by its number. Default: private SQLite files."
)

EPILOG = """\b
Examples:
  twiceproof prove shop:sync_order --event order.json --files out
  twiceproof prove shop:sync_order --event order.json --calls shop:send_mail
  twiceproof prove shop:sync_order --event order.json --http api.shop.test --http-keys
  twiceproof prove shop:sync_order --event order.json --files out --scene lost-2
Exit codes: 0 safe to repeat, 1 not, 2 one clean run proves nothing.
"""


@click.command(epilog=EPILOG, short_help="Show that a flow is safe to repeat, before it meets a customer.")
@click.argument("flow", metavar="MODULE:FLOW")
@click.option("--event", metavar="FILE", required=True, multiple=True, help=EVENT_HELP)
@outside_options
@click.option(
    "--callback", metavar="NAME=FILE", multiple=True, help="What comes for app.wait_for(NAME) or app.remote, as JSON."
)
@click.option("--approve", metavar="NAME", multiple=True, help="Say yes to app.approve(NAME).")
@click.option(
    "--real",
    metavar="HOST",
    multiple=True,
    help="A host, host:port or socket path that every play may reach for real.",
)
@click.option(
    "--ends",
    type=click.Choice(["done", "failed", "review"]),
    default="done",
    show_default=True,
    help="What one clean run comes to.",
)
@click.option(
    "--time",
    "budget",
    metavar="TIME",
    help="How long it may take, such as 60s; what was not reached is said, and counts as not played.",
)
@click.option(
    "--depth",
    type=click.IntRange(1, 2),
    default=2,
    show_default=True,
    help="2: a second kill at every point of every recovery. 1: none.",
)
@click.option(
    "--processes",
    is_flag=True,
    help="Each process of a play is a real one, and a kill a SIGKILL; slower, for what lies outside of memory.",
)
@click.option("--scene", metavar="NAME", default="", help="Play this one alone.")
@click.option("--all", "every", is_flag=True, help="A line for each scene, with what was expected and seen.")
@click.option("--junit", metavar="FILE", help="Write the verdicts as JUnit XML.")
@options_about(STORE_HELP)
@click.pass_context
def prove(
    ctx: click.Context, /, flow: str, event: tuple[str, ...], callback: tuple[str, ...], approve: tuple[str, ...],
    real: tuple[str, ...], ends: str, budget: str | None, depth: int, processes: bool, scene: str, every: bool,
    junit: str | None, **looked_at: Any,
) -> None:  # fmt: skip
    """Play a flow twice, eight times at once, killed at every point, paused, with answers lost; in private.

    After each play the outside must be as after one clean run, or the run must wait for a person.
    """
    from msgspec import structs

    from ..prove.prover import Prover
    from ..prove.worlds.world import Worlds

    outside = Outside(**looked_at)
    proved = structs.replace(_proved(flow, event, callback, approve), ends=ends, real=real)
    span = None if budget is None else seconds(budget, name="time")
    target = ctx.ensure_object(Target)
    store = target.url if target.given_store else "sqlite"
    if junit:
        _write(junit, "")
    with Progress("Playing", quiet=target.json) as progress, _ended_in_order(), ExitStack() as stack:
        report = Prover(
            proved, Worlds(outside.open(stack)), store=store, only=scene, budget=span, depth=depth,
            processes=processes, shown=progress.show,
        ).run()  # fmt: skip
    if junit:
        from ..prove.junit import junit as written

        _write(junit, written(report))
    if target.json:
        show_json({"safe": report.good, "complete": report.complete, **_shape(report)})
    else:
        said = _words({"--callback": callback, "--approve": approve, "--real": real})
        said += [*(["--processes"] if processes else []), *(["--ends", ends] if ends != "done" else [])]
        events = _words({"--event": event})
        _show(report, [*target.words(), "prove", flow, *events, *outside.words(), *said], every)
    ctx.exit(OK if report.good else NEGATIVE)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Whoever ends it, the outside is put back as it was: a pipeline that runs out of time sends SIGTERM."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _write(name: str, text: str) -> None:
    """Tried before anything is played: a proof takes minutes."""
    try:
        Path(name).write_text(text, "utf-8")
    except OSError as error:
        raise Misuse(f"{name} cannot be written ({error.strerror}); --junit takes a file's name.") from None


def _proved(flow: str, event: tuple[str, ...], callback: tuple[str, ...], approve: tuple[str, ...]) -> Proved:
    from msgspec import structs

    from ..prove.target import spread, target_of
    from .load import load

    function = load(flow)
    (args, kwargs), *then = [spread(function, read_json(name, "--event")) for name in event]
    callbacks = dict(_callback(one) for one in callback)
    return structs.replace(
        target_of(function, *args, **kwargs), then=tuple(then), callbacks=callbacks, approve=approve
    )  # fmt: skip


def _words(several: dict[str, tuple[str, ...]]) -> list[str]:
    return [word for option, names in several.items() for name in names for word in (option, name)]


def _callback(given: str) -> tuple[str, Any]:
    name, sign, file = given.partition("=")
    if not (name and sign and file):
        raise Misuse(f"--callback {given!r} names no file; write it as --callback paid=payment.json.")
    return name, read_json(file, "--callback")


def _shape(report: Report) -> dict[str, Any]:
    from msgspec import structs

    return structs.asdict(report)


def _show(report: Report, words: list[str], every: bool) -> None:
    """`words` are those of the command, to be given again."""
    from ..prove.picture import all_rows, closing_line, group_rows

    show_text(f"{report.flow}, {report.key}: one clean run does this to the outside:")
    for what, count in report.expected.items():
        show_text(f"  {count} × {what}")
    show_text()
    if every:
        show_table(("SCENE", "WHAT WAS INJECTED", "EXPECTED", "SEEN", "THE RUN IS", "VERDICT"), all_rows(report))
        show_text()
    show_table(("WHAT WAS PLAYED", "SCENES", "CAME TO"), group_rows(report))
    for step in report.unobserved:
        show_text(f"\nNot observed: {step} acted, and nothing that was looked at changed.")
    for clock in report.clocks:
        show_text(
            f"\nNot played: a delivery at another time. The key is made with {clock}(), and no play moves that: once "
            "it says something else, the same event has another key, and all of this is done once more. Make the key "
            "of what the event carries."
        )
    if report.guard != "kernel":
        show_text(
            "\nNot guarded: connections that go neither by way of Python's socket nor of psycopg. The kernel does not "
            "help with them here; see that nothing else in this flow reaches the network."
        )
    if not report.compares_result:
        show_text("\nNot compared: the result, which is another one in each clean run.")
    if report.bad:
        _show_bad(report, words)
    show_text(f"\n{closing_line(report)}")


def _show_bad(report: Report, words: list[str]) -> None:
    from ..prove.picture import bad_rows, more_line, timeline, wrong_lines

    show_text()
    show_table(("SCENE", "WHAT WAS INJECTED", "VERDICT", "BESIDE ONE CLEAN RUN"), bad_rows(report))
    if more := more_line(report):
        show_text(more)
    show_text(f"\nThe worst of them, {report.worst_scene}:")
    for line in timeline(report.worst):
        show_text(line)
    show_text(f"\nPlay it again: {shlex.join(['twiceproof', *words, '--scene', report.worst_scene])}")
    if report.wrong:
        show_text()
    for line in wrong_lines(report):
        show_text(line)
