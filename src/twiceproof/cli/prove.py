"""Prove."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from ..errors import Misuse
from ..keys.duration import seconds
from ..safe_text import has_password
from .failures import NEGATIVE, OK
from .output import Progress, show_json, show_table, show_text
from .target import LedgerTarget, options_about, read_private

if TYPE_CHECKING:
    from ..prove.report import ProofReport
    from ..prove.target import ProofTarget as Proved
    from ..prove.worlds.world import World

__all__ = ["WorldOptions", "outside_options", "prove", "read_json"]


F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--files",
        metavar="DIR",
        multiple=True,
        help="A directory that the flow writes into; its contents are the outside, and are put back before each play.",
    ),
    click.option(
        "--calls",
        metavar="MODULE:FUNCTION",
        multiple=True,
        help="A function whose calls are the effect; looked up where it is called.",
    ),
    click.option(
        "--http",
        metavar="HOST",
        multiple=True,
        help="A host, or host:port, that a recording server stands in for, for `http://`.",
    ),
    click.option("--http-answers", metavar="FILE", help="What that server answers, as JSON."),
    click.option("--http-keys", is_flag=True, help="That server honours Idempotency-Key."),
    click.option(
        "--http-counts",
        metavar="REQUEST",
        multiple=True,
        help='That server counts these requests, such as "PUT /meters/*": the same PUT or DELETE again is an effect.',
    ),
    click.option(
        "--smtp", metavar="HOST", multiple=True, help="A mail server, or host:port, that a sink stands in for."
    ),
    click.option(
        "--table",
        metavar="URL#NAME",
        multiple=True,
        help="A table that the flow writes into, in SQLite or PostgreSQL; @FILE reads the URL from a private file.",
    ),
)


def outside_options(command: F) -> F:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


class WorldOptions(Struct, frozen=True):
    files: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    http: tuple[str, ...] = ()
    http_answers: str | None = None
    http_keys: bool = False
    http_counts: tuple[str, ...] = ()
    smtp: tuple[str, ...] = ()
    table: tuple[str, ...] = ()

    def open(self, stack: ExitStack) -> list[World]:
        """Everything that was named; what stands in for others is ended with the stack."""
        found: list[World] = self._still(stack)
        if self.http:
            from ..prove.worlds.http import HttpWorld

            answers = read_json(self.http_answers, "--http-answers") if self.http_answers else {}
            world = HttpWorld(
                list(self.http), answers=answers, honours_keys=self.http_keys, counts=list(self.http_counts)
            )
            found.append(stack.enter_context(world))
        if self.smtp:
            from ..prove.worlds.smtp import SmtpWorld

            found.append(stack.enter_context(SmtpWorld(list(self.smtp))))
        if not found:
            raise Misuse(
                "Nothing is looked at; say what the effect is: --files DIR, --calls module:function, --http HOST, "
                "--smtp HOST or --table URL#name."
            )
        return found

    def _still(self, stack: ExitStack) -> list[World]:
        from ..prove.worlds.files import Files
        from ..prove.worlds.table import TableWorld
        from ..prove.worlds.world import CountedCalls

        apart = len(self.files) > 1
        found: list[World] = [stack.enter_context(closing(Files(Path(name), apart=apart))) for name in self.files]
        found += [stack.enter_context(closing(TableWorld(_private(name)))) for name in self.table]
        return [*found, CountedCalls(list(self.calls))] if self.calls else found

    def words(self) -> list[str]:
        """The same on a command line, without passwords."""
        several = {"--files": self.files, "--calls": self.calls, "--http": self.http, "--smtp": self.smtp}
        several["--table"] = tuple("@FILE" if has_password(name) else name for name in self.table)
        several["--http-counts"] = self.http_counts
        words = [word for option, names in several.items() for name in names for word in (option, name)]
        words += ["--http-answers", self.http_answers] if self.http_answers else []
        return [*words, "--http-keys"] if self.http_keys else words


def _private(name: str) -> str:
    return read_private(Path(name[1:]), "--table") if name.startswith("@") else name


def read_json(name: str, option: str) -> Any:
    import msgspec

    from ..inbound.reply import duplicate_name

    try:
        text = Path(name).read_bytes()
        value = msgspec.json.decode(text)
    except OSError as error:
        raise Misuse(f"{name} cannot be read ({error.strerror}); {option} takes a JSON file.") from None
    except msgspec.DecodeError as error:
        raise Misuse(f"{name} is not JSON ({error}); correct it.") from None
    if (twice := duplicate_name(text)) is not None:
        raise Misuse(f"{name} has the name {twice[:80]!r} twice in one object; correct it.")
    return value


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
    ctx: click.Context,
    /,
    flow: str,
    event: tuple[str, ...],
    callback: tuple[str, ...],
    approve: tuple[str, ...],
    real: tuple[str, ...],
    ends: str,
    budget: str | None,
    depth: int,
    processes: bool,
    scene: str,
    every: bool,
    junit: str | None,
    **looked_at: Any,
) -> None:
    """Play a flow twice, eight times at once, killed at every point, paused, with answers lost; in private.

    After each play the outside must be as after one clean run, or the run must wait for a person.
    """
    from msgspec import structs

    from ..prove.prover import Prover
    from ..prove.worlds.world import Worlds

    outside = WorldOptions(**looked_at)
    proved = structs.replace(_proved(flow, event, callback, approve), ends=ends, real=real)
    span = None if budget is None else seconds(budget, name="time")
    target = ctx.ensure_object(LedgerTarget)
    store = target.url if target.given_store else "sqlite"
    if junit:
        _write(junit, "")
    with Progress("Playing", quiet=target.json) as progress, _ended_in_order(), ExitStack() as stack:
        report = Prover(
            proved,
            Worlds(outside.open(stack)),
            store=store,
            only=scene,
            budget=span,
            depth=depth,
            processes=processes,
            shown=progress.show,
        ).run()
    if junit:
        from ..prove.report import junit as written

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
    return structs.replace(target_of(function, *args, **kwargs), then=tuple(then), callbacks=callbacks, approve=approve)


def _words(several: dict[str, tuple[str, ...]]) -> list[str]:
    return [word for option, names in several.items() for name in names for word in (option, name)]


def _callback(given: str) -> tuple[str, Any]:
    name, sign, file = given.partition("=")
    if not (name and sign and file):
        raise Misuse(f"--callback {given!r} names no file; write it as --callback paid=payment.json.")
    return name, read_json(file, "--callback")


def _shape(report: ProofReport) -> dict[str, Any]:
    from msgspec import structs

    return structs.asdict(report)


def _show(report: ProofReport, words: list[str], every: bool) -> None:
    """`words` are those of the command, to be given again."""
    from ..prove.report import all_rows, closing_line, group_rows

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


def _show_bad(report: ProofReport, words: list[str]) -> None:
    from ..prove.report import bad_rows, more_line, timeline, wrong_lines

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
