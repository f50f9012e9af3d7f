"""`twiceproof work` and `twiceproof serve`: processes that run until a signal stops them."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..claims.error_messages import one_write_store
from ..errors import Misuse
from ..keys.duration import seconds
from ..safe_text import shown_url
from .output import NEGATIVE, clean, show_text
from .target import LedgerTarget, no_target

if TYPE_CHECKING:
    from ..app.app import App
    from ..flows.workers.worker import Worker
    from ..inbound.queues.readers import QueueReaders
    from ..outbox.relay import Relay

__all__ = ["consume", "relay", "require_server", "serve", "take_json", "work"]


F = TypeVar("F", bound=Callable[..., Any])


def take_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.ensure_object(LedgerTarget).json |= value


def _process_options(*, drain: str, json: str) -> Callable[[F], F]:
    """Add what both commands take: the app, --concurrency, --drain, --json. The texts are the options' helps."""
    options = (
        click.argument("app", metavar="MODULE:APP"),
        click.option(
            "--concurrency",
            metavar="N",
            type=click.IntRange(1, 10_000),
            default=10,
            show_default=True,
            help="Maximum number of runs at the same time.",
        ),
        click.option("--drain", metavar="TIME", default="30s", show_default=True, help=drain),
        click.option("--json", is_flag=True, expose_value=False, is_eager=True, callback=take_json, help=json),
    )

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return no_target(function)

    return decorate


def _start(app: str, *, as_json: bool) -> App:
    """Import the app, and set up logging."""
    from .load import load_app  # late imports: `--help` does not need them
    from .output import set_up_logs

    found = load_app(app, announce=False)
    set_up_logs(as_json=as_json)
    return found


def _log_new_ledger(log: logging.Logger, app: App) -> None:
    from ..app.app import NEW_LEDGER

    if app.new_ledger is not None:
        log.warning(NEW_LEDGER, app.new_ledger)


def _exit_with_runs_left(log: logging.Logger, left: int) -> None:
    """End the process with exit code 1 if runs are left. Steps that still run cannot be ended in another way."""
    if left:
        log.warning("stopped with %d runs unfinished; other workers recover them when their leases expire", left)
        logging.shutdown()
        os._exit(NEGATIVE)


work_log = logging.getLogger("twiceproof.work")

WORK_EPILOG = """\b
Examples:
  twiceproof work shop:app
  twiceproof work shop:app --concurrency 50 --drain 2m
  twiceproof work shop:app --flow sync_order --flow refund
  twiceproof work shop:app --until-idle
Exit codes: 0 drained, or idle with --until-idle; 1 stopped with runs unfinished,
which other workers recover when their leases expire.
"""
ALSO = "a worker without it, or `twiceproof relay` and `twiceproof consume`"


@click.command(epilog=WORK_EPILOG)
@_process_options(
    drain="Time that running steps have to end after SIGTERM or Ctrl-C.", json="Log JSON lines to stderr."
)
@click.option(
    "--flow",
    "flows",
    metavar="NAME",
    multiple=True,
    help="Run only this flow, with its schedules and polls. Default: all flows of the app.",
)
@click.option("--until-idle", is_flag=True, help="Exit when no run is due or running.")
@click.option(
    "--metrics-port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="Port for Prometheus metrics at /metrics; 0 picks a free one and logs it. Default: no metrics.",
)
@click.option(
    "--metrics-host",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Address for /metrics; every client that reaches it can read the metrics.",
)
@click.pass_context
def work(
    ctx: click.Context,
    app: str,
    concurrency: int,
    drain: str,
    flows: tuple[str, ...],
    until_idle: bool,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Run a worker that executes queued and due runs.

    It also recovers the runs of crashed workers. Start as many workers as you like, on any number of machines: they
    coordinate through the store. On SIGTERM or Ctrl-C it takes no new runs, lets running steps end, and hands runs
    back before their next step; a second signal stops it at once.
    """
    timeout = seconds(drain, name="drain", positive=False)
    with _start(app, as_json=ctx.ensure_object(LedgerTarget).json) as found:
        if found.store.batch_limit == 1:
            raise one_write_store("A worker")
        if not any(work.queues() for work in found.due_work) and not found.routing.targets and not found.consumers:
            raise Misuse(f"{app} declares no flows, so a worker has nothing to do; put @app.flow(key=…) on a function.")
        worker = found.worker(concurrency=concurrency, flows=flows)
        with _metrics(found, worker, metrics_host, metrics_port):
            work_log.info("running %s on %s, %d at once", _flow_names(found, flows), _store(found), concurrency)
            _log_new_ledger(work_log, found)
            if flows and (found.routing.targets or found.consumers):
                work_log.warning(
                    "with --flow no messages are published and no queues read; other processes must do so: %s", ALSO
                )
            _run(found, worker, timeout, until_idle=until_idle)


@contextmanager
def _metrics(app: App, worker: Worker, host: str, port: int | None) -> Iterator[None]:
    if port is None:
        yield
        return
    try:
        from ..server.metrics_port import MetricsPort
    except ImportError as error:
        raise Misuse(f"--metrics-port needs {error.name}; run: pip install 'twiceproof[server]'") from None
    served = MetricsPort(app, worker, host, port)
    work_log.info("metrics at %s", served.url)
    try:
        yield
    finally:
        served.close()


def _run(app: App, worker: Worker, timeout: float, *, until_idle: bool) -> None:
    if app.settings.store.startswith("memory:"):
        work_log.warning("a memory:// store exists only within this process: it gets no runs of other processes")
    with _draining_on_signals(worker):
        left = worker.run(until_idle=until_idle, patience=timeout)
    _exit_with_runs_left(work_log, left)
    work_log.info("stopped after %d runs, none unfinished", worker.begun)


def _flow_names(app: App, only: tuple[str, ...]) -> str:
    flows = [flow for flow in app.flows.values() if not only or flow.name in only]
    return ", ".join(f"{flow.name}@{version}" for flow in flows for version in flow.versions) or "due work"


def _store(app: App) -> str:
    return clean(shown_url(app.settings.store)) if app.settings.store else "a store object"


@contextmanager
def _draining_on_signals(worker: Worker | Relay | QueueReaders) -> Iterator[None]:
    """Drain it on the first SIGTERM or SIGINT, and stop it on the second."""

    def handle(number: int, frame: Any) -> None:
        (worker.stop if worker.draining else worker.drain)()

    before = {sign: signal.signal(sign, handle) for sign in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


relay_log = logging.getLogger("twiceproof.relay")

RELAY_EPILOG = """\b
Examples:
  twiceproof relay shop:app
  twiceproof relay shop:app --until-idle
Exit codes: 0 drained, or idle with --until-idle; 1 stopped while messages were
being published, which are published again with the same keys.
"""


@click.command(epilog=RELAY_EPILOG)
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--drain", metavar="TIME", default="30s", show_default=True, help="Time to wait for confirmations after SIGTERM."
)
@click.option("--until-idle", is_flag=True, help="Exit when no message is due, and say when the next will be.")
@click.option(
    "--json", is_flag=True, expose_value=False, is_eager=True, callback=take_json, help="Log JSON lines to stderr."
)
@no_target
@click.pass_context
def relay(ctx: click.Context, app: str, drain: str, until_idle: bool) -> None:
    """Publish messages to the brokers and webhooks of an app.

    `twiceproof work` and `twiceproof serve` do so beside their worker. Start as many relays as you like, on any number
    of machines. On SIGTERM or Ctrl-C it takes no new messages, and waits for confirmations.
    """
    timeout = seconds(drain, name="drain", positive=False)
    with _start(app, as_json=ctx.ensure_object(LedgerTarget).json) as found:
        if found.store.batch_limit == 1:
            raise one_write_store("The outbox")
        if not found.routing.targets:
            raise Misuse(
                f"{app} declares no broker, so a relay has nothing to do; write app.broker(…) and app.route(…)."
            )
        running = found.relay()
        names = ", ".join(sorted(found.routing.targets))
        relay_log.info("publishing to %s from %s", names, _store(found))
        _log_new_ledger(relay_log, found)
        movers = found.draining()
        movers.run(until_idle=True) if until_idle else movers.start()
        with _draining_on_signals(running):
            running.run(until_idle=until_idle, patience=timeout)
        movers.drain()
        movers.join(timeout)
        if running.join(0):
            raise click.exceptions.Exit(NEGATIVE)
    later = running.next_in if until_idle else None
    waits = "" if later is None else f"; others wait, and the next is due in {max(0.0, later):.0f} s"
    relay_log.info("stopped after %d messages%s", running.published, waits)


consume_log = logging.getLogger("twiceproof.consume")

CONSUME_EPILOG = """\b
Examples:
  twiceproof consume shop:app
  twiceproof consume shop:app --consumer main/orders
Exit codes: 0 drained; 1 stopped with deliveries unsettled, which the broker
delivers again; 2 refused to start, or every consumer has stopped.
"""


@click.command(epilog=CONSUME_EPILOG)
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--consumer", "names", metavar="NAME", multiple=True, help="Read only this queue. Default: all of the app."
)
@click.option(
    "--drain", metavar="TIME", default="30s", show_default=True, help="Time to settle what was received after SIGTERM."
)
@click.option(
    "--json", is_flag=True, expose_value=False, is_eager=True, callback=take_json, help="Log JSON lines to stderr."
)
@no_target
@click.pass_context
def consume(ctx: click.Context, app: str, names: tuple[str, ...], drain: str) -> None:
    """Read the queues of an app, and start runs.

    Workers execute the runs; `twiceproof work` and `twiceproof serve` read queues, too. Start as many as you like. On
    SIGTERM or Ctrl-C it receives nothing more, and settles what it has received.
    """
    timeout = seconds(drain, name="drain", positive=False)
    with _start(app, as_json=ctx.ensure_object(LedgerTarget).json) as found:
        if not found.consumers:
            raise Misuse(f"{app} declares no consumers; write app.consume(…).")
        reading = found.consuming(names)
        shown = ", ".join(reader.consumer.name for reader in reading.readers)
        consume_log.info("reading %s into %s", shown, _store(found))
        _log_new_ledger(consume_log, found)
        with _draining_on_signals(reading):
            left = reading.run(patience=timeout)
        if not reading.draining:
            raise Misuse(next(reader.refused for reader in reading.readers if reader.refused))
        if left:
            raise click.exceptions.Exit(NEGATIVE)
    consume_log.info("stopped after %d deliveries", sum(sum(one.outcomes.values()) for one in reading.readers))


server_log = logging.getLogger("twiceproof.server")

SERVE_EPILOG = """\b
Examples:
  twiceproof serve shop:app
  twiceproof serve shop:app --port 0 --no-worker
  twiceproof serve shop:app --host 0.0.0.0 --behind-proxy
Exit codes: 0 drained; 1 stopped with runs unfinished, which other workers recover
when their leases expire; 2 refused to start.
"""


@click.command(epilog=SERVE_EPILOG)
@_process_options(
    drain="Time that requests, then running steps, have to end after SIGTERM or Ctrl-C.",
    json="Print the URL as one JSON line on stdout, and log JSON lines to stderr.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; other machines need a token, or --open.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 picks a free one. The URL is printed.",
)
@click.option("--no-worker", is_flag=True, help="Do not run a worker; start `twiceproof work` for that.")
@click.option(
    "--lame-duck",
    metavar="TIME",
    default="5s",
    show_default=True,
    help="Time to accept requests after SIGTERM, while /readyz fails, until load balancers have noticed.",
)
@click.option(
    "--deadline",
    metavar="TIME",
    default="10s",
    show_default=True,
    help="Time limit for receiving a request's headers and body.",
)
@click.option(
    "--rate",
    metavar="N",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="Requests per second per token, and per address without a token; 0 for no limit.",
)
@click.option(
    "--connections",
    metavar="N",
    type=click.IntRange(1),
    default=2000,
    show_default=True,
    help="Maximum open connections.",
)
@click.option(
    "--behind-proxy", is_flag=True, help="Take the client address from the last X-Forwarded-For; requires a token."
)
@click.option("--no-access-log", is_flag=True, help="Do not log requests.")
@click.option(
    "--open",
    "--insecure",
    "everybody",
    is_flag=True,
    help="Allow every request without a token while no token exists, also from other machines and through proxies.",
)
@click.pass_context
def serve(
    ctx: click.Context,
    app: str,
    host: str,
    port: int,
    no_worker: bool,
    concurrency: int,
    drain: str,
    lame_duck: str,
    deadline: str,
    rate: int,
    connections: int,
    behind_proxy: bool,
    no_access_log: bool,
    everybody: bool,
) -> None:
    """Run the HTTP server of an app, with a worker.

    It serves webhooks, claims, runs, callbacks and approvals. While no token exists, only requests from this machine
    are accepted: run `twiceproof tokens create` before you put a proxy or a tunnel in front of it.

    On SIGTERM /readyz fails, and requests are accepted for the time of --lame-duck. Then, or on Ctrl-C, it accepts no
    new requests, lets requests and steps end, and hands runs back before their next step; a second signal stops it at
    once.
    """
    require_server()
    from msgspec import structs

    from ..server.limits import ServerLimits
    from ..server.serve import Options
    from ..server.serve import serve as run

    as_json = ctx.ensure_object(LedgerTarget).json
    timeout = seconds(drain, name="drain", positive=False)
    duck = seconds(lame_duck, name="lame-duck", positive=False)
    limits = ServerLimits(
        connections=connections, deadline=seconds(deadline, name="deadline"), per_token=rate, per_source=rate
    )
    options = Options(host, port, 0 if no_worker else concurrency, timeout, duck, everybody, behind_proxy, limits)
    with _start(app, as_json=as_json) as found:
        _log_new_ledger(server_log, found)
        if found.store.batch_limit == 1:  # such a store has no runs
            options = structs.replace(options, concurrency=0)
        if no_access_log:
            logging.getLogger("twiceproof.access").setLevel(logging.WARNING)
        _exit_with_runs_left(server_log, run(found, options, lambda url: _announce(url, as_json=as_json)))
    server_log.info("stopped, no runs unfinished")


def _announce(url: str, *, as_json: bool) -> None:
    """Print the URL as one line on stdout: a parent process that passed --port 0 reads it."""
    import msgspec

    show_text(msgspec.json.encode({"url": url}).decode() if as_json else f"Serving at {url}")


def require_server() -> None:
    """Refuse if the extra `server` is not installed."""
    try:
        import httptools  # noqa: F401
        import jinja2  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise Misuse(f"The server needs {error.name}; run: pip install 'twiceproof[server]'") from None
