"""Twiceproof serve: uvicorn, worker thread, drain."""

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
    "bound",
    "serve",
    "trust_of",
    "url_of",
    "warn_of_missing_secrets",
    "warn_of_open_door",
]


log = logging.getLogger("twiceproof.server")

EVERY = 5  # ticks of a tenth of a second
BACKLOG = 2_048


class DrainingServer(uvicorn.Server):
    """On SIGTERM it is ready no more, but goes on answering for `lame_duck` seconds, until balancers look elsewhere.

    Every answer ends its connection meanwhile. Then, or on Ctrl-C at once, nothing new is accepted, and what is under
    way may end; on the second signal it stops at once.
    """

    def __init__(
        self, application: Application, *, drain: float, lame_duck: float = 0.0, announce: Callable[[], None]
    ) -> None:
        self.station = application.station
        self._lame_duck = lame_duck
        self._stays_until: float | None = None
        protocol = guarded(application.limits, application.station.metrics)
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
            self._look()
        if self._stays_until is not None and self._now() >= self._stays_until:
            self.should_exit = True
        return await super().on_tick(counter)

    def _now(self) -> float:
        return self.station.app.clock.monotonic()

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            cast(GuardedProtocol, connection).look(now)
        self.station.metrics.connections.set(len(self.server_state.connections))
        self.station.app.sweep_if_due()  # a server of claims alone holds none itself, and nobody else would

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Told only now: whoever knows the address can call it, and send us a signal."""
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is here now stays: looking through it again and again took a tenth of a new webhook
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Nobody may keep us by sending slowly. Who has connected already is let in: closing would reset them."""
        await asyncio.sleep(0)  # the loop accepts what waits
        await asyncio.sleep(0)
        looking = asyncio.create_task(self._keep_looking())
        await super().shutdown(sockets)
        looking.cancel()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(EVERY / 10)
            self._look()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn raises a signal again once it is done, which would end us before the worker has drained."""
        before = {sign: signal.signal(sign, self.handle_exit) for sign in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for sign, handler in before.items():
                signal.signal(sign, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.station.draining:  # told a second time
            self.force_exit = self.should_exit = True
            return
        self.station.draining = True
        if sig == signal.SIGTERM and self._lame_duck:
            self._stays_until = self._now() + self._lame_duck
        else:
            self.should_exit = True


def bound(host: str, port: int) -> socket.socket:
    """Before anything is served: whoever starts us learns the address, also of port 0, and a taken one is refused."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)  # without the protocol asyncio would leave Nagle's delay on
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        raise Misuse(
            f"{host} port {port} cannot be listened at ({error.strerror or error}); choose with --host and --port."
        ) from None
    return made


def url_of(made: socket.socket) -> str:
    host, port = made.getsockname()[:2]
    return f"http://[{host}]:{port}" if made.family == socket.AF_INET6 else f"http://{host}:{port}"


CREATE = ("tokens", "create", "NAME", "--scope", "admin")
AGAIN = 5.0  # seconds


class Options(Struct, frozen=True):
    """What `twiceproof serve` was told. `concurrency` 0: no worker in this process."""

    host: str = "127.0.0.1"
    port: int = 8000
    concurrency: int = 10
    drain: float = 30.0
    lame_duck: float = 5.0
    open: bool = False
    behind_proxy: bool = False
    limits: ServerLimits = ServerLimits()


def serve(app: App, options: Options, announce: Callable[[str], None]) -> int:
    """How many runs were left unfinished here. `announce` is told the address once it can be called."""
    trust = trust_of(app, options)
    application = make_application(app, limits=options.limits, trust=trust, behind_proxy=options.behind_proxy)
    made = bound(options.host, options.port)
    warn_of_open_door(app, trust, url_of(made))
    warn_of_missing_secrets(app)
    crew = WorkerThread(app, options, application.station) if options.concurrency else None
    if crew is not None:
        crew.thread.start()
    serving = DrainingServer(
        application, drain=options.drain, lame_duck=options.lame_duck, announce=lambda: announce(url_of(made))
    )
    serving.run(sockets=[made])
    return 0 if crew is None else crew.leave(options.drain)


def trust_of(app: App, options: Options) -> Trust:
    """Beyond this machine only with tokens, or with the word that it is meant so. A proxy leads beyond it."""
    if options.open:
        return "everybody"
    if is_loopback(options.host) and not options.behind_proxy:
        return "loopback"
    if not block(any_token(app.store)):
        raise Misuse(
            f"{_shown_place(options)} can be reached from elsewhere, and no token exists: everybody could do "
            f"everything; run: {_create(app)}, or serve on 127.0.0.1 without a proxy, or say --open if it is meant so."
        )
    return "nobody"


def _create(app: App) -> str:
    return suggested_command(*store_words(app.settings.store), *CREATE)


def warn_of_open_door(app: App, trust: Trust, url: str) -> None:
    """Said at every start without a token: a proxy or tunnel that is put before it later says nothing by itself."""
    if trust == "nobody" or _has_token(app):
        return
    if trust == "everybody":
        log.warning(
            "INSECURE: no token exists, and with --open whoever reaches %s may do everything, from anywhere; "
            "make a token: %s",
            url,
            _create(app),
        )
        return
    log.warning(
        "OPEN: no token exists, so whoever reaches %s is the operator and may do everything, through a proxy or a "
        "tunnel on this machine, too; what shows signs of one is refused, but not every one shows any; make a "
        "token: %s",
        url,
        _create(app),
    )


def _has_token(app: App) -> bool:
    try:
        return block(any_token(app.store))
    except StoreError:
        return False  # not known: better said once too often


def _shown_place(options: Options) -> str:
    return f"{options.host} behind a proxy" if is_loopback(options.host) else options.host


def warn_of_missing_secrets(app: App) -> None:
    """Said at the start: later there is nothing but senders that are not believed."""
    for hook in app.hooks.values():
        if not any(hook.secrets()):
            log.warning("nothing that %s sends can be believed, its secret is not set; set it and restart", hook.name)


class WorkerThread:
    """The worker in this process, on a thread of its own. It begins to leave when no request is under way any more.

    One that breaks is followed by another: without any, events would be taken in and nobody would work on them.
    """

    def __init__(self, app: App, options: Options, station: ServerStatus) -> None:
        self._app = app
        self._concurrency = options.concurrency
        self._station = station
        self._leaving = threading.Event()
        self.worker = self._hired()
        self.left = 0
        self.thread = threading.Thread(target=self._run, args=(options.drain,), name="twiceproof-worker", daemon=True)

    def _hired(self) -> Worker:
        worker = self._station.worker = self._app.worker(concurrency=self._concurrency)
        return worker

    def _run(self, patience: float) -> None:
        while not self._leaving.is_set():  # asked after the hiring: who leaves meanwhile drains the one before
            try:
                self.left = self.worker.run(patience=patience)
                return
            except Exception:
                log.exception("the worker in this process has ended; another one begins in %g s", AGAIN)
            self._leaving.wait(AGAIN)
            self.worker = self._hired()

    def leave(self, patience: float) -> int:
        until = time.monotonic() + patience + 1.0
        self._leaving.set()
        self.worker.drain()
        self.thread.join(max(0.0, until - time.monotonic()))
        return self.left if not self.thread.is_alive() else self.worker.taken
