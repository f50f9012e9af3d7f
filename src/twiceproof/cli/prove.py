"""`twiceproof prove`: runs a flow under faults and compares its effects with those of one clean run."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from ..errors import Misuse
from ..keys.duration import seconds
from ..safe_text import has_password
from .output import NEGATIVE, OK, Progress, show_json, show_table, show_text
from .target import LedgerTarget, options_about, read_private

if TYPE_CHECKING:
    from ..prove.report import ProofReport
    from ..prove.target import ProofTarget as Proved
    from ..prove.worlds.personalities import ProviderWorld
    from ..prove.worlds.world import World

__all__ = ["WorldOptions", "outside_options", "prove", "read_json"]


F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--files",
        metavar="DIR",
        multiple=True,
        help="Directory that the flow writes into; its contents are compared, and restored before each run.",
    ),
    click.option(
        "--calls",
        metavar="MODULE:FUNCTION",
        multiple=True,
        help="Function whose calls are the effect; it is replaced where it is looked up.",
    ),
    click.option(
        "--http",
        metavar="HOST",
        multiple=True,
        help="Host, or host:port, that is replaced by a recording HTTP server.",
    ),
    click.option("--http-answers", metavar="FILE", help="JSON file with the answers of that server."),
    click.option("--http-keys", is_flag=True, help="Let that server honour Idempotency-Key."),
    click.option(
        "--http-counts",
        metavar="REQUEST",
        multiple=True,
        help='Count each of these requests as an effect, such as "PUT /meters/*", also a repeated PUT or DELETE.',
    ),
    click.option(
        "--provider",
        metavar="NAME",
        multiple=True,
        help="Provider, such as stripe or mollie=api.mollie.test, that is replaced by a server that honours keys as "
        "the provider documents.",
    ),
    click.option(
        "--smtp", metavar="HOST", multiple=True, help="Mail server, or host:port, that is replaced by a sink."
    ),
    click.option(
        "--imap",
        metavar="HOST",
        multiple=True,
        help="IMAP server, or host:port, that is replaced by one with a copy of each mail that the sink took.",
    ),
    click.option(
        "--broker",
        is_flag=True,
        help="Replace every broker by a recording one, to which the messages of the flow are published.",
    ),
    click.option(
        "--table",
        metavar="URL#NAME",
        multiple=True,
        help="Table in SQLite or PostgreSQL that the flow writes into; @FILE reads the URL from a private file.",
    ),
    click.option(
        "--ledger-table",
        metavar="NAME",
        multiple=True,
        help="Table in the ledger's own database, which transactional steps write; each scenario has a copy of it.",
    ),
)


def outside_options(command: F) -> F:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


class WorldOptions(Struct, frozen=True):
    """The options that say where the effects of the flow are observed."""

    files: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    http: tuple[str, ...] = ()
    http_answers: str | None = None
    http_keys: bool = False
    http_counts: tuple[str, ...] = ()
    provider: tuple[str, ...] = ()
    smtp: tuple[str, ...] = ()
    imap: tuple[str, ...] = ()
    broker: bool = False
    table: tuple[str, ...] = ()
    ledger_table: tuple[str, ...] = ()

    def open_broker(self, stack: ExitStack) -> list[World]:
        """Open the broker: before the flow is loaded, whose module may open one of its own."""
        from ..prove.worlds.broker import BrokerWorld

        return [stack.enter_context(BrokerWorld())] if self.broker else []

    def open(self, stack: ExitStack, before: Sequence[World] = ()) -> list[World]:
        """Open everything else that was named; servers that replace others end with the stack."""
        found: list[World] = [*self._without_servers(stack), *before]
        if self.http:
            from ..prove.worlds.http import HttpWorld

            answers = read_json(self.http_answers, "--http-answers") if self.http_answers else {}
            world = HttpWorld(
                list(self.http), answers=answers, honours_keys=self.http_keys, counts=list(self.http_counts)
            )
            found.append(stack.enter_context(world))
        found += [stack.enter_context(_provider_world(one)) for one in self.provider]
        found += self._mail(stack)
        if not found and not self.ledger_table:
            raise Misuse(
                "No effect is observed; say where to look: --files DIR, --calls module:function, --http HOST, "
                "--provider NAME, --smtp HOST, --broker, --table URL#name or --ledger-table NAME."
            )
        return found

    def _mail(self, stack: ExitStack) -> list[World]:
        from ..prove.worlds.smtp import ImapWorld, SmtpWorld

        if not self.smtp:
            if self.imap:
                raise Misuse("--imap is the folder of what --smtp sends; name the mail server as well: --smtp HOST.")
            return []
        sink = stack.enter_context(SmtpWorld(list(self.smtp)))
        return [sink, *([stack.enter_context(ImapWorld(list(self.imap), sink))] if self.imap else [])]

    def _without_servers(self, stack: ExitStack) -> list[World]:
        from ..prove.worlds.files import Files
        from ..prove.worlds.table import TableWorld
        from ..prove.worlds.world import CountedCalls

        apart = len(self.files) > 1
        found: list[World] = [stack.enter_context(closing(Files(Path(name), apart=apart))) for name in self.files]
        found += [stack.enter_context(closing(TableWorld(_private(name)))) for name in self.table]
        return [*found, CountedCalls(list(self.calls))] if self.calls else found

    def words(self) -> list[str]:
        """Return the options as words of a command line, without passwords."""
        several = {"--files": self.files, "--calls": self.calls, "--http": self.http}
        several |= {"--provider": self.provider, "--smtp": self.smtp, "--imap": self.imap}
        several["--table"] = tuple("@FILE" if has_password(name) else name for name in self.table)
        several["--http-counts"], several["--ledger-table"] = self.http_counts, self.ledger_table
        words = [word for option, names in several.items() for name in names for word in (option, name)]
        words += ["--http-answers", self.http_answers] if self.http_answers else []
        words += ["--http-keys"] if self.http_keys else []
        return [*words, "--broker"] if self.broker else words


def _provider_world(given: str) -> ProviderWorld:
    """`stripe`, or `mollie=api.mollie.test` for a host that the table does not name."""
    from ..prove.worlds.personalities import ProviderWorld

    name, _, host = given.partition("=")
    return ProviderWorld(name, hosts=[host] if host else None)


def _private(name: str) -> str:
    return read_private(Path(name[1:]), "--table") if name.startswith("@") else name


def read_json(name: str, option: str) -> Any:
    import msgspec

    from ..keys.canonical import duplicate_name

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
    "JSON file with the input: passed whole to a single parameter, otherwise by parameter name. "
    "Further files are later events of the same object, and are delivered in every order."
)
STORE_HELP = (
    "Store for the ledgers of the scenarios: memory://, a PostgreSQL database (with one schema per scenario), or an "
    "empty Redis database named by its number. Default: temporary SQLite files."
)

EPILOG = """\b
Examples:
  twiceproof prove shop:sync_order --event order.json --files out
  twiceproof prove shop:sync_order --event order.json --calls shop:send_mail
  twiceproof prove shop:sync_order --event order.json --http api.shop.test --http-keys
  twiceproof prove shop:sync_order --event order.json --provider stripe --smtp mail.shop.test --imap mail.shop.test:993
  twiceproof prove shop:sync_order --event order.json --files out --scenario lost-2
Exit codes: 0 safe to repeat; 1 not; 2 the clean run is no basis for a comparison.
"""


@click.command(epilog=EPILOG)
@click.argument("flow", metavar="MODULE:FLOW")
@click.option("--event", metavar="FILE", required=True, multiple=True, help=EVENT_HELP)
@outside_options
@click.option(
    "--callback", metavar="NAME=FILE", multiple=True, help="JSON payload for app.wait_for(NAME) or app.remote."
)
@click.option("--approve", metavar="NAME", multiple=True, help="Approve app.approve(NAME).")
@click.option(
    "--real",
    metavar="HOST",
    multiple=True,
    help="Host, host:port or socket path that the flow may really connect to. Default: none.",
)
@click.option(
    "--ends",
    type=click.Choice(["done", "failed", "review"]),
    default="done",
    show_default=True,
    help="Expected state of the clean run.",
)
@click.option(
    "--time-limit",
    "budget",
    metavar="TIME",
    help="Time limit, such as 60s; scenarios not reached are reported as not run. Default: none.",
)
@click.option(
    "--depth",
    type=click.IntRange(1, 2),
    default=2,
    show_default=True,
    help="Kills per scenario: 1, or 2 with a second kill at every point of every recovery.",
)
@click.option("--processes", is_flag=True, help="Use real processes and SIGKILL; slower, and covers state on disk.")
@click.option("--scenario", metavar="NAME", default="", help="Run only this scenario.")
@click.option("--all", "every", is_flag=True, help="Print a line for each scenario, with expected and actual effects.")
@click.option("--junit", metavar="FILE", help="Write the verdicts to this file as JUnit XML.")
@click.option("--record", is_flag=True, help="Keep the report in the app's store, as evidence for flows promote.")
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
    scenario: str,
    every: bool,
    junit: str | None,
    record: bool,
    **observed: Any,
) -> None:
    """Test under faults that a flow is safe to repeat.

    The flow is run twice, eight times at once, killed at every point, paused, and with lost responses, each time with
    a ledger of its own. After each scenario its effects must equal those of one clean run, or the run must be in
    review.
    """
    from msgspec import structs

    from ..prove.prover import Prover
    from ..prove.worlds.world import Worlds

    outside, stack = WorldOptions(**observed), ExitStack()
    broker = outside.open_broker(stack)
    ctx.call_on_close(stack.close)
    proved = structs.replace(_proved(flow, event, callback, approve), ends=ends, real=real)
    span = None if budget is None else seconds(budget, name="time-limit")
    target = ctx.ensure_object(LedgerTarget)
    store = target.url if target.given_store else "sqlite"
    if junit:
        _write(junit, "")
    if record and (scenario or budget):
        raise Misuse(
            "One scenario, or a time limit, is no evidence for a release; leave it out, or leave out --record."
        )
    with Progress("Scenarios", quiet=target.json) as progress, _clean_up_on_sigterm(), stack:
        report = Prover(
            proved,
            Worlds(outside.open(stack, broker)),
            store=store,
            only=scenario,
            budget=span,
            depth=depth,
            processes=processes,
            tables=outside.ledger_table,
            shown=progress.show,
        ).run()
    if record:
        from .python_releases import record_evidence

        record_evidence(proved, report, depth, outside.words())
    if junit:
        from ..prove.report import junit as written

        _write(junit, written(report))
    if target.json:
        show_json({"safe": report.good, "complete": report.complete, **_shape(report)})
    else:
        given = _words({"--callback": callback, "--approve": approve, "--real": real})
        given += [*(["--processes"] if processes else []), *(["--ends", ends] if ends != "done" else [])]
        events = _words({"--event": event})
        _show(report, [*target.words(), "prove", flow, *events, *outside.words(), *given], every)
    ctx.exit(OK if report.good else NEGATIVE)


@contextmanager
def _clean_up_on_sigterm() -> Iterator[None]:
    """Restore the observed files and tables also on SIGTERM, which a pipeline sends at its time limit."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _write(name: str, text: str) -> None:
    """Write a file. Also called before the first scenario, to fail early: a proof takes minutes."""
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
    """Print the report. `words` are those of the command, to suggest it again."""
    from ..prove.report import all_rows, closing_line, group_rows

    show_text(f"{report.flow}, {report.key}: the effects of one clean run:")
    for what, count in report.expected.items():
        show_text(f"  {count} × {what}")
    show_text()
    if every:
        show_table(("SCENARIO", "FAULT", "EXPECTED", "ACTUAL", "STATE", "VERDICT"), all_rows(report))
        show_text()
    show_table(("FAULT", "SCENARIOS", "OUTCOME"), group_rows(report))
    for step in report.unobserved:
        show_text(f"\nNot observed: {step} ran, and nothing that was observed changed.")
    for clock in report.clocks:
        show_text(
            f"\nNot tested: a delivery at another time. The key is made with {clock}(), which no scenario changes: "
            "later the same event has another key, and all of this is done again. Make the key from the event's data."
        )
    if report.guard != "kernel":
        show_text(
            "\nNot guarded: connections made neither with Python's socket nor with psycopg. The kernel cannot block "
            "them here; make sure that nothing else in this flow uses the network."
        )
    if not report.compares_result:
        show_text("\nNot compared: the result, which differs between clean runs.")
    if report.bad:
        _show_bad(report, words)
    show_text(f"\n{closing_line(report)}")


def _show_bad(report: ProofReport, words: list[str]) -> None:
    from ..prove.report import bad_rows, more_line, timeline, unanswered_lines, wrong_lines

    show_text()
    show_table(("SCENARIO", "FAULT", "VERDICT", "COMPARED WITH A CLEAN RUN"), bad_rows(report))
    if more := more_line(report):
        show_text(more)
    show_text(f"\nThe worst scenario, {report.worst_scenario}:")
    for line in timeline(report.worst):
        show_text(line)
    show_text(f"\nTo run it again: {shlex.join(['twiceproof', *words, '--scenario', report.worst_scenario])}")
    if report.wrong:
        show_text()
    for line in wrong_lines(report):
        show_text(line)
    for line in unanswered_lines(report):
        show_text(f"\n{line}")
