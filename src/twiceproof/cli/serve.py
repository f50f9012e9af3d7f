"""Serve and work."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ..errors import Misuse
from ..keys.duration import seconds
from ..safe_text import shown_url
from .failures import NEGATIVE
from .output import clean, show_text
from .target import LedgerTarget, no_target

if TYPE_CHECKING:
    from ..app.app import App
    from ..flows.workers.worker import Worker

__all__ = ["serve", "take_json", "work"]


work_log = logging.getLogger("twiceproof.work")

WORK_EPILOG = """\b
Examples:
  twiceproof work shop:app
  twiceproof work shop:app --concurrency 50 --drain 2m
  twiceproof work shop:app --flow sync_order --flow refund
  twiceproof work shop:app --until-idle
Exit codes: 0 drained, or nothing left to do; 1 stopped with runs under way,
which others recover when their leases are over.
"""


def take_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.ensure_object(LedgerTarget).json |= value


@click.command(epilog=WORK_EPILOG, short_help="Carry out runs, until told to stop.")
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--concurrency",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="How many runs at once.",
)
@click.option(
    "--drain",
    metavar="TIME",
    default="30s",
    show_default=True,
    help="How long running steps may take to end after SIGTERM or Ctrl-C.",
)
@click.option(
    "--flow",
    "flows",
    metavar="NAME",
    multiple=True,
    help="Serve only this flow, its schedules and polls; may be given several times. Default: all of the app's.",
)
@click.option("--until-idle", is_flag=True, help="End when nothing is due or running.")
@click.option(
    "--metrics-port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="Serve /metrics for Prometheus there; 0 takes any that is free, and the log says which.",
)
@click.option(
    "--metrics-host",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Where /metrics is served; whoever reaches it may read the counts.",
)
@click.option(
    "--json", is_flag=True, expose_value=False, is_eager=True, callback=take_json, help="Log in JSON lines, on stderr."
)
@no_target
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
    """Carry out runs: what was started, has slept long enough, or was left behind.

    Run as many of these as you like, on as many machines: they meet in the store. On SIGTERM or Ctrl-C nothing new is
    begun, running steps may end, and runs are given back before their next step; a second one stops it at once.
    """
    from ..app.app import NEW_LEDGER  # what `version` and the like have no need of
    from .load import load_app
    from .output import set_up_logs

    target = ctx.ensure_object(LedgerTarget)
    patience = seconds(drain, name="drain", positive=False)
    found = load_app(app, tell=False)
    set_up_logs(as_json=target.json)
    with found:
        if not any(duty.queues() for duty in found.duties):
            raise Misuse(f"{app} declares no flows; a worker would wait for ever. Put @app.flow(key=…) on a function.")
        worker = found.worker(concurrency=concurrency, flows=flows)
        with _metrics(found, worker, metrics_host, metrics_port):
            work_log.info("serving %s on %s, %d at once", _served(found, flows), _store(found), concurrency)
            if found.new_ledger is not None:
                work_log.warning(NEW_LEDGER, found.new_ledger)
            _serve(found, worker, patience, until_idle=until_idle)


@contextmanager
def _metrics(app: App, worker: Worker, host: str, port: int | None) -> Iterator[None]:
    if port is None:
        yield
        return
    try:
        from ..server.monitoring import MetricsPort
    except ImportError as error:
        raise Misuse(f"--metrics-port needs {error.name}; run: pip install 'twiceproof[server]'") from None
    served = MetricsPort(app, worker, host, port)
    work_log.info("metrics at %s", served.url)
    try:
        yield
    finally:
        served.close()


def _serve(app: App, worker: Worker, patience: float, *, until_idle: bool) -> None:
    if app.settings.store.startswith("memory:"):
        work_log.warning("memory:// is this process's alone: runs that are started elsewhere do not arrive here")
    with _heeding_signals(worker):
        left = worker.run(until_idle=until_idle, patience=patience)
    if left:
        work_log.warning("stopped with %d still under way; others recover what is left when its lease is over", left)
        logging.shutdown()
        os._exit(NEGATIVE)  # steps that still run cannot be ended otherwise
    work_log.info("stopped; %d taken up, nothing left under way", worker.begun)


def _served(app: App, only: tuple[str, ...]) -> str:
    flows = [flow for flow in app.flows.values() if not only or flow.name in only]
    return ", ".join(f"{flow.name}@{version}" for flow in flows for version in flow.versions) or "what is due"


def _store(app: App) -> str:
    return clean(shown_url(app.settings.store)) if app.settings.store else "a store of its own"


@contextmanager
def _heeding_signals(worker: Worker) -> Iterator[None]:
    def heed(number: int, frame: Any) -> None:
        (worker.stop if worker.draining else worker.drain)()

    before = {sign: signal.signal(sign, heed) for sign in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


server_log = logging.getLogger("twiceproof.server")

EPILOG = """\b
Examples:
  twiceproof serve shop:app
  twiceproof serve shop:app --port 0 --no-worker
  twiceproof serve shop:app --host 0.0.0.0 --behind-proxy
Exit codes: 0 drained; 1 stopped with runs under way, which others recover
when their leases are over; 2 refused to start.
"""


@click.command(epilog=EPILOG, short_help="Serve webhooks, claims and runs over HTTP.")
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen; beyond this machine only with a token, or --open.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="0 takes any that is free, and the address is printed.",
)
@click.option("--no-worker", is_flag=True, help="Leave runs to `twiceproof work`.")
@click.option(
    "--concurrency",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="How many runs at once.",
)
@click.option(
    "--drain",
    metavar="TIME",
    default="30s",
    show_default=True,
    help="How long requests, and then steps, may take to end after SIGTERM or Ctrl-C.",
)
@click.option(
    "--lame-duck",
    metavar="TIME",
    default="5s",
    show_default=True,
    help="How long requests are still taken after SIGTERM, while /readyz says no: until balancers look elsewhere.",
)
@click.option(
    "--deadline",
    metavar="TIME",
    default="10s",
    show_default=True,
    help="In which a request's head and body must be here.",
)
@click.option(
    "--rate",
    metavar="N",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="Requests per second of one token, and of one address without. 0: no limit.",
)
@click.option(
    "--connections", metavar="N", type=click.IntRange(1), default=2000, show_default=True, help="Connections at once."
)
@click.option("--behind-proxy", is_flag=True, help="Believe the last address in X-Forwarded-For; needs a token, too.")
@click.option("--no-access-log", is_flag=True, help="No line per request.")
@click.option(
    "--open",
    "--insecure",
    "everybody",
    is_flag=True,
    help="Without any token, whoever reaches it may do everything, from elsewhere and through proxies, too.",
)
@click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=take_json,
    help="Tell the address as one JSON line on stdout, log in JSON lines on stderr.",
)
@no_target
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
    """Serve an app over HTTP: webhooks, claims, runs, callbacks and approvals, with a worker inside.

    While no token exists, only calls straight from this machine are believed: make one with `twiceproof tokens create`
    before you put a proxy or a tunnel before it.

    On SIGTERM /readyz says no, and requests are still taken for the time of --lame-duck. Then, or on Ctrl-C, nothing
    new is accepted, requests may end, and runs are given back before their next step; a second signal stops it at once.
    """
    _require_extra()
    from ..app.app import NEW_LEDGER
    from ..server.limits import ServerLimits
    from ..server.serve import Options
    from ..server.serve import serve as run
    from .load import load_app
    from .output import set_up_logs

    target = ctx.ensure_object(LedgerTarget)
    patience = seconds(drain, name="drain", positive=False)
    duck = seconds(lame_duck, name="lame-duck", positive=False)
    limits = ServerLimits(
        connections=connections, deadline=seconds(deadline, name="deadline"), per_token=rate, per_source=rate
    )
    options = Options(host, port, 0 if no_worker else concurrency, patience, duck, everybody, behind_proxy, limits)
    found = load_app(app, tell=False)
    set_up_logs(as_json=target.json)
    if found.new_ledger is not None:
        server_log.warning(NEW_LEDGER, found.new_ledger)
    if no_access_log:
        logging.getLogger("twiceproof.access").setLevel(logging.WARNING)
    with found:
        left = run(found, options, lambda url: _announce(url, as_json=target.json))
        if left:
            server_log.warning(
                "stopped with %d still under way; others recover what is left when its lease is over", left
            )
            logging.shutdown()
            os._exit(NEGATIVE)  # steps that still run cannot be ended otherwise
    server_log.info("stopped, nothing left under way")


def _announce(url: str, *, as_json: bool) -> None:
    """One line on stdout: whoever started us with port 0 reads it."""
    import msgspec

    show_text(msgspec.json.encode({"url": url}).decode() if as_json else f"Serving at {url}")


def _require_extra() -> None:
    try:
        import httptools  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise Misuse(f"The server needs {error.name}; run: pip install 'twiceproof[server]'") from None
