"""`twiceproof work`: carries out runs, here, until it is told to stop."""

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
from ..passwords import shown_url
from .clean import clean
from .failures import NEGATIVE
from .target import Target, no_target

if TYPE_CHECKING:
    from ..app import App
    from ..flows.workers.worker import Worker

__all__ = ["take_json", "work"]

log = logging.getLogger("twiceproof.work")

EPILOG = """\b
Examples:
  twiceproof work shop:app
  twiceproof work shop:app --concurrency 50 --drain 2m
  twiceproof work shop:app --flow sync_order --flow refund
  twiceproof work shop:app --until-idle
Exit codes: 0 drained, or nothing left to do; 1 stopped with runs under way,
which others recover when their leases are over.
"""


def take_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Target).json |= value


@click.command(epilog=EPILOG, short_help="Carry out runs, until told to stop.")
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--concurrency", metavar="N", type=click.IntRange(1, 10_000), default=10, show_default=True,
    help="How many runs at once.",
)  # fmt: skip
@click.option(
    "--drain",
    metavar="TIME",
    default="30s",
    show_default=True,
    help="How long running steps may take to end after SIGTERM or Ctrl-C.",
)
@click.option(
    "--flow", "flows", metavar="NAME", multiple=True,
    help="Serve only this flow, its schedules and polls; may be given several times. Default: all of the app's.",
)  # fmt: skip
@click.option("--until-idle", is_flag=True, help="End when nothing is due or running.")
@click.option(
    "--metrics-port", metavar="N", type=click.IntRange(0, 65535),
    help="Serve /metrics for Prometheus there; 0 takes any that is free, and the log says which.",
)  # fmt: skip
@click.option(
    "--metrics-host", metavar="HOST", default="127.0.0.1", show_default=True,
    help="Where /metrics is served; whoever reaches it may read the counts.",
)  # fmt: skip
@click.option(
    "--json", is_flag=True, expose_value=False, is_eager=True, callback=take_json, help="Log in JSON lines, on stderr."
)
@no_target
@click.pass_context
def work(
    ctx: click.Context, app: str, concurrency: int, drain: str, flows: tuple[str, ...], until_idle: bool,
    metrics_port: int | None, metrics_host: str,
) -> None:  # fmt: skip
    """Carry out runs: what was started, has slept long enough, or was left behind.

    Run as many of these as you like, on as many machines: they meet in the store. On SIGTERM or Ctrl-C nothing new is
    begun, running steps may end, and runs are given back before their next step; a second one stops it at once.
    """
    from ..app import NEW_LEDGER  # what `version` and the like have no need of
    from .load import load_app
    from .logs import set_up_logs

    target = ctx.ensure_object(Target)
    patience = seconds(drain, name="drain", positive=False)
    found = load_app(app, tell=False)
    set_up_logs(as_json=target.json)
    with found:
        if not any(duty.queues() for duty in found.duties):
            raise Misuse(f"{app} declares no flows; a worker would wait for ever. Put @app.flow(key=…) on a function.")
        worker = found.worker(concurrency=concurrency, flows=flows)
        with _metrics(found, worker, metrics_host, metrics_port):
            log.info("serving %s on %s, %d at once", _served(found, flows), _store(found), concurrency)
            if found.new_ledger is not None:
                log.warning(NEW_LEDGER, found.new_ledger)
            _serve(found, worker, patience, until_idle=until_idle)


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
    log.info("metrics at %s", served.url)
    try:
        yield
    finally:
        served.close()


def _serve(app: App, worker: Worker, patience: float, *, until_idle: bool) -> None:
    if app.settings.store.startswith("memory:"):
        log.warning("memory:// is this process's alone: runs that are started elsewhere do not arrive here")
    with _heeding_signals(worker):
        left = worker.run(until_idle=until_idle, patience=patience)
    if left:
        log.warning("stopped with %d still under way; others recover what is left when its lease is over", left)
        logging.shutdown()
        os._exit(NEGATIVE)  # steps that still run cannot be ended otherwise
    log.info("stopped; %d taken up, nothing left under way", worker.begun)


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
