"""`twiceproof serve`: uvicorn with a worker thread, readiness and draining."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import cast

import uvicorn
from msgspec import Struct

from ..app.app import App
from ..errors import Misuse, StoreError
from ..flows.workers.worker import Worker
from ..operations import block
from ..safe_text import store_words, suggested_command
from .app import Application, make_application
from .auth import Trust, is_loopback
from .limits import ServerLimits
from .monitoring import ServerStatus
from .protocol import GuardedProtocol, guarded
from .tokens import any_token

__all__ = [
    "DrainingServer",
    "Options",
    "bind_socket",
    "serve",
    "trust_of",
    "url_of",
    "warn_if_open",
    "warn_of_missing_secrets",
]


log = logging.getLogger("twiceproof.server")

EVERY = 5  # ticks of a tenth of a second
BACKLOG = 2_048


class DrainingServer(uvicorn.Server):
    """On SIGTERM it reports not ready, but keeps serving for `lame_duck` seconds, until load balancers have noticed.

    Every response closes its connection meanwhile. Then, or at once on Ctrl-C, it stops accepting and finishes requests
    in progress; a second signal stops it immediately.
    """

    def __init__(
        self, application: Application, *, drain: float, lame_duck: float = 0.0, announce: Callable[[], None]
    ) -> None:
        self.server_status = application.server_status
        self._lame_duck = lame_duck
        self._exit_at: float | None = None
        protocol = guarded(application.limits, application.server_status.metrics)
        config = uvicorn.Config(
            application,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=max(1, round(drain)),
            backlog=BACKLOG,
        )
        super().__init__(config)
        self._announce = announce

    async def on_tick(self, counter: int) -> bool:
        if counter % EVERY == 0:
            self._check_connections()
        if self._exit_at is not None and self._now() >= self._exit_at:
            self.should_exit = True
        return await super().on_tick(counter)

    def _now(self) -> float:
        return self.server_status.app.clock.monotonic()

    def _check_connections(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            cast(GuardedProtocol, connection).check_deadline(now)
        self.server_status.metrics.connections.set(len(self.server_state.connections))
        self.server_status.app.sweep_if_due()  # without a worker, nothing else would sweep

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Announce the address only now, when requests and signals are handled."""
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # excludes startup objects from later collections, which took a tenth of a new webhook's time
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down, still enforcing deadlines. Pending connections are accepted first: closing would reset them."""
        await asyncio.sleep(0)  # lets the loop accept pending connections
        await asyncio.sleep(0)
        checking = asyncio.create_task(self._keep_checking())
        await super().shutdown(sockets)
        checking.cancel()

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(EVERY / 10)
            self._check_connections()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Override uvicorn, which raises the signal again and would end the process before the worker drains."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.server_status.draining:  # the second signal
            self.force_exit = self.should_exit = True
            return
        self.server_status.draining = True
        if sig == signal.SIGTERM and self._lame_duck:
            self._exit_at = self._now() + self._lame_duck
        else:
            self.should_exit = True


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind before serving, so that the address is known, also for port 0, and a used port is reported."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)  # without the protocol, asyncio does not disable Nagle's algorithm
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        raise Misuse(
            f"Cannot listen on {host} port {port} ({error.strerror or error}); choose with --host and --port."
        ) from None
    return sock


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"


CREATE = ("tokens", "create", "NAME", "--scope", "admin")
AGAIN = 5.0  # seconds


class Options(Struct, frozen=True):
    """The options of `twiceproof serve`. With `concurrency` 0 there is no worker in this process."""

    host: str = "127.0.0.1"
    port: int = 8000
    concurrency: int = 10
    drain: float = 30.0
    lame_duck: float = 5.0
    open: bool = False
    behind_proxy: bool = False
    limits: ServerLimits = ServerLimits()


def serve(app: App, options: Options, announce: Callable[[str], None]) -> int:
    """Serve until stopped, and return how many runs were left unfinished. `announce` is called with the address."""
    trust = trust_of(app, options)
    application = make_application(app, limits=options.limits, trust=trust, behind_proxy=options.behind_proxy)
    sock = bind_socket(options.host, options.port)
    warn_if_open(app, trust, url_of(sock))
    warn_of_missing_secrets(app)
    worker_thread = WorkerThread(app, options, application.server_status) if options.concurrency else None
    if worker_thread is not None:
        worker_thread.thread.start()
    serving = DrainingServer(
        application, drain=options.drain, lame_duck=options.lame_duck, announce=lambda: announce(url_of(sock))
    )
    serving.run(sockets=[sock])
    return 0 if worker_thread is None else worker_thread.leave(options.drain)


def trust_of(app: App, options: Options) -> Trust:
    """Return who is trusted without a token. A server reachable from other machines, also by a proxy, needs tokens or
    --open.
    """
    if options.open:
        return "everybody"
    if is_loopback(options.host) and not options.behind_proxy:
        return "loopback"
    if not block(any_token(app.store)):
        raise Misuse(
            f"{_shown_place(options)} can be reached from other machines, and no token exists: everyone could do "
            f"everything; run: {_create(app)}, or serve on 127.0.0.1 without a proxy, or use --open if intended."
        )
    return "nobody"


def _create(app: App) -> str:
    return suggested_command(*store_words(app.settings.store), *CREATE)


def warn_if_open(app: App, trust: Trust, url: str) -> None:
    """Warn at every start without a token: a proxy or tunnel added later would not be noticed."""
    if trust == "nobody" or _has_token(app):
        return
    if trust == "everybody":
        log.warning(
            "INSECURE: no token exists, and with --open everyone who can reach %s may do everything; "
            "create a token: %s",
            url,
            _create(app),
        )
        return
    log.warning(
        "OPEN: no token exists, so everyone who can reach %s is the operator and may do everything, also through a "
        "proxy or a tunnel on this machine; requests that show signs of one are refused, but not every one shows any; "
        "create a token: %s",
        url,
        _create(app),
    )


def _has_token(app: App) -> bool:
    try:
        return block(any_token(app.store))
    except StoreError:
        return False  # not known: warn rather than stay silent


def _shown_place(options: Options) -> str:
    return f"{options.host} behind a proxy" if is_loopback(options.host) else options.host


def warn_of_missing_secrets(app: App) -> None:
    """Warn at the start: later, the only symptom is that deliveries fail verification."""
    for hook in app.hooks.values():
        if not any(hook.secrets()):
            log.warning(
                "deliveries of %s cannot be verified, because its secret is not set; set it and restart", hook.name
            )


class WorkerThread:
    """The worker in this process, on its own thread. It drains once all requests have ended.

    If it fails, another one is started: otherwise events would be accepted and never processed.
    """

    def __init__(self, app: App, options: Options, server_status: ServerStatus) -> None:
        self._app = app
        self._concurrency = options.concurrency
        self._server_status = server_status
        self._leaving = threading.Event()
        self.worker = self._new_worker()
        self.left = 0
        self.thread = threading.Thread(target=self._run, args=(options.drain,), name="twiceproof-worker", daemon=True)

    def _new_worker(self) -> Worker:
        worker = self._server_status.worker = self._app.worker(concurrency=self._concurrency)
        return worker

    def _run(self, timeout: float) -> None:
        while (
            not self._leaving.is_set()
        ):  # checked after a new worker is made: a shutdown meanwhile has drained the one before
            try:
                self.left = self.worker.run(patience=timeout)
                return
            except Exception:
                log.exception("the worker in this process has failed; another one starts in %g s", AGAIN)
            self._leaving.wait(AGAIN)
            self.worker = self._new_worker()

    def leave(self, timeout: float) -> int:
        until = time.monotonic() + timeout + 1.0
        self._leaving.set()
        self.worker.drain()
        self.thread.join(max(0.0, until - time.monotonic()))
        return self.left if not self.thread.is_alive() else self.worker.taken
