"""`twiceproof serve`: the server behind the doors."""

from __future__ import annotations

import logging
import os

import click

from ..errors import Misuse
from ..keys.duration import seconds
from .failures import NEGATIVE
from .output import show_text
from .target import Target, no_target
from .work import take_json

__all__ = ["serve"]

log = logging.getLogger("twiceproof.server")

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
    "--concurrency", metavar="N", type=click.IntRange(1, 10_000), default=10, show_default=True,
    help="How many runs at once.",
)  # fmt: skip
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
    "--rate", metavar="N", type=click.IntRange(0), default=1000, show_default=True,
    help="Requests per second of one token, and of one address without. 0: no limit.",
)  # fmt: skip
@click.option(
    "--connections", metavar="N", type=click.IntRange(1), default=2000, show_default=True, help="Connections at once."
)
@click.option("--behind-proxy", is_flag=True, help="Believe the last address in X-Forwarded-For; needs a token, too.")
@click.option("--no-access-log", is_flag=True, help="No line per request.")
@click.option(
    "--open", "--insecure", "everybody", is_flag=True,
    help="Without any token, whoever reaches it may do everything, from elsewhere and through proxies, too.",
)  # fmt: skip
@click.option("--json", is_flag=True, expose_value=False, is_eager=True, callback=take_json,
              help="Tell the address as one JSON line on stdout, log in JSON lines on stderr.")  # fmt: skip
@no_target
@click.pass_context
def serve(
    ctx: click.Context, app: str, host: str, port: int, no_worker: bool, concurrency: int, drain: str, lame_duck: str,
    deadline: str, rate: int, connections: int, behind_proxy: bool, no_access_log: bool, everybody: bool,
) -> None:  # fmt: skip
    """Serve an app over HTTP: webhooks, claims, runs, callbacks and approvals, with a worker inside.

    While no token exists, only calls straight from this machine are believed: make one with `twiceproof tokens create`
    before you put a proxy or a tunnel before it.

    On SIGTERM /readyz says no, and requests are still taken for the time of --lame-duck. Then, or on Ctrl-C, nothing
    new is accepted, requests may end, and runs are given back before their next step; a second signal stops it at once.
    """
    _require_extra()
    from ..app import NEW_LEDGER
    from ..server.limits import Limits
    from ..server.serve import Options
    from ..server.serve import serve as run
    from .load import load_app
    from .logs import set_up_logs

    target = ctx.ensure_object(Target)
    patience = seconds(drain, name="drain", positive=False)
    duck = seconds(lame_duck, name="lame-duck", positive=False)
    limits = Limits(
        connections=connections, deadline=seconds(deadline, name="deadline"), per_token=rate, per_source=rate
    )
    options = Options(host, port, 0 if no_worker else concurrency, patience, duck, everybody, behind_proxy, limits)
    found = load_app(app, tell=False)
    set_up_logs(as_json=target.json)
    if found.new_ledger is not None:
        log.warning(NEW_LEDGER, found.new_ledger)
    if no_access_log:
        logging.getLogger("twiceproof.access").setLevel(logging.WARNING)
    with found:
        left = run(found, options, lambda url: _announce(url, as_json=target.json))
        if left:
            log.warning("stopped with %d still under way; others recover what is left when its lease is over", left)
            logging.shutdown()
            os._exit(NEGATIVE)  # steps that still run cannot be ended otherwise
    log.info("stopped, nothing left under way")


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
