"""LiveReleases: the release on which a flow's new runs begin, and the releases that still have runs under way.

A start reads one small record, cached for at most half a second and until the store notifies of a change. Releases are
read and compiled when a run first needs them.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from msgspec import Struct, structs

from ..app.app import App
from ..errors import Misuse, StoreError
from ..flows.flow import Flow
from ..inbound.hook import Hook
from ..operations import Operation, block
from ..stores.base import Store, scan_all
from .connections import Connections
from .reading import ReadFlow, read_flow
from .releases import (
    LIVE_KIND,
    FlowRelease,
    LiveFlow,
    function_digests,
    live_of,
    read_live,
    release_name,
    release_of,
    space_of_flow,
)
from .tenants import TenantConnections

__all__ = ["CompiledRelease", "LiveReleases", "Triggered", "scratch_app"]


log = logging.getLogger("twiceproof.flows")

FRESH = 0.5  # seconds for which what is live is not read again
LISTED = 5.0  # seconds for which workers do not list again what is live
AHEAD = 3  # number of future releases for which workers look for runs, before they are notified of them
MOST_COMPILED = 200  # releases that are kept in memory
MakeInput = Callable[[Any], Any]
Triggered = Mapping[tuple[str, str], MakeInput]  # by kind and name of a trigger: what makes the flow's input


class CompiledRelease(Struct, frozen=True, eq=False):
    """A flow of a file, ready to run: the flow itself, and how its triggers make its input."""

    flow: Flow
    triggers: Triggered


Compile = Callable[[App, ReadFlow, Connections, str], CompiledRelease]


class SeenLive(Struct, frozen=True):
    """What was live, and when it was read by this process's clock. `last`: the highest number of a release so far."""

    at: float
    live: LiveFlow | None
    last: int = 0

    @classmethod
    def read(cls, at: float, found: LiveFlow | None) -> SeenLive:
        """A version of Python code that was recorded under this name is nothing to begin on, but has a number."""
        last = 0 if found is None else found.last
        return cls(at, None if found is not None and found.version else found, last)


class LiveReleases:
    """The releases of the flows in files of one app, for all of its tenants.

    `only`: without a live release, a flow does not start; otherwise it starts as the file of this process says. `files`
    and `connections` are what this process was started with; `prepare` compiles a flow's file for a tenant, and raises
    Misuse if that has not the connections.
    """

    def __init__(
        self,
        app: App,
        compile_file: Compile,
        *,
        only: bool = False,
        files: Mapping[str, ReadFlow] | None = None,
        connections: TenantConnections | None = None,
    ) -> None:
        self._app = app
        self._store: Store = app.runtime.store
        self._clock = app.runtime.clock
        self._compile_file = compile_file
        self._only = only
        self.files = files or {}
        self._connections = connections
        self.prepare: dict[str, Callable[[str], object]] = {}  # by the flow's name, called with the tenant
        self._seen: dict[tuple[str, str], SeenLive] = {}
        self._compiled: OrderedDict[tuple[str, str, int], CompiledRelease] = OrderedDict()
        self._names: dict[tuple[str, str], tuple[int, tuple[str, ...]]] = {}
        self._listed_at: float | None = None
        self._changes = self._store.watch(())
        self._mutex = threading.RLock()

    # -- what is live ----------------------------------------------------------------------------

    def live(self, flow: Flow) -> Operation[Flow]:
        """Return the flow that new runs begin on."""
        compiled = yield from self.live_release(flow)
        return self._file_flow(flow) if compiled is None else compiled.flow

    def _file_flow(self, flow: Flow) -> Flow:
        """Return a flow as the file of this process has it. Raises Misuse if the tenant has not its connections."""
        prepare = self.prepare.get(flow.name)
        if prepare is not None:
            prepare(flow.policy.tenant)
        return flow

    def connections_of(self, tenant: str) -> Connections:
        return Connections() if self._connections is None else self._connections.of(tenant)

    def is_paused(self, flow: Flow) -> Operation[bool]:
        found = yield from self._pointer(flow)
        return found is not None and found.paused

    def live_release(self, flow: Flow) -> Operation[CompiledRelease | None]:
        """Return the live release; None if there is none, and the file of this process may run. Raises Misuse."""
        found = yield from self._pointer(flow)
        if found is not None:
            return (yield from self._release(flow, found.number))
        if self._only:
            raise Misuse(
                f"No release of {flow.name} is live, and this app starts nothing else; promote one: "
                f"twiceproof flows promote {flow.name}"
            )
        return None

    def live_hook(self, hook: Hook, tenant: str) -> Operation[Hook | None]:
        """Return a webhook or consumer as the tenant's live release has it. None: that has no such trigger."""
        flow = hook.flow.of(tenant)
        found = yield from self._pointer(flow)
        if found is None:
            return None if self._only else hook
        compiled = yield from self._release(flow, found.number)
        make = compiled.triggers.get(("webhook", hook.name)) or compiled.triggers.get(("queue", hook.name))
        if make is None:
            return None
        return structs.replace(hook, flow=compiled.flow, make=make, latest=None)

    def _pointer(self, flow: Flow) -> Operation[LiveFlow | None]:
        name = flow.policy.tenant, flow.name
        now = self._clock.monotonic()  # taken before the read: the result may be as old as this
        if self._changes.take():
            self._seen.clear()
        seen = self._seen.get(name)
        if seen is not None and now - seen.at < FRESH:
            return seen.live
        self._watch(name)
        self._seen[name] = seen = SeenLive.read(now, (yield from live_of(self._store, *name)))
        return seen.live

    def _watch(self, name: tuple[str, str]) -> None:
        with self._mutex:
            self._changes.move({space_of_flow(*one) for one in (*self._seen, name)})

    # -- releases --------------------------------------------------------------------------------

    def _release(self, flow: Flow, number: int) -> Operation[CompiledRelease]:
        name = (flow.policy.tenant, flow.name, number)
        known = self._compiled.get(name)
        if known is None:
            found = yield from release_of(self._store, *name[:2], release_name(number))
            known = self._compile(flow, found)
            with self._mutex:
                self._compiled[name] = known
                while len(self._compiled) > MOST_COMPILED:
                    self._compiled.popitem(last=False)
        return known

    def _compile(self, flow: Flow, release: FlowRelease) -> CompiledRelease:
        read = read_flow(release.text)
        if function_digests(read) != release.functions:
            log.warning(
                "%s of %s was proved with other code of %s than is here; test and promote it again, or deploy the "
                "code that it was proved with",
                release.name,
                flow.name,
                ", ".join(sorted(release.functions)) or "its functions",
            )
        tenant = flow.policy.tenant
        with self._mutex:  # two threads must not declare on one app at once
            view = scratch_app(self._app, flow.name)
            compiled = self._compile_file(view, read, self.connections_of(tenant), release.name)
        return CompiledRelease(compiled.flow.of(tenant), compiled.triggers)

    def carrying(self, flow: Flow, version: str) -> Flow | None:
        """Return the flow that carries out runs of a release, or of the file; None if there is no such version."""
        if version in flow.versions:
            return self._file_flow(flow)
        if not (version[:1] == "r" and version[1:].isdecimal()):
            return None
        try:
            return block(self._release(flow, int(version[1:]))).flow
        except Misuse as error:
            raise Misuse(f"{flow.name}@{version} cannot be carried out here: {error}") from None

    # -- for workers -----------------------------------------------------------------------------

    def versions(self, flow: Flow) -> tuple[str, ...]:
        """Return every release up to now and a few future ones, so that the first run of a new one is found at once;
        its file is read when there is such a run. None for a paused flow.
        """
        self._list_when_due()
        seen = self._seen.get((flow.policy.tenant, flow.name))
        if seen is not None and seen.live is not None and seen.live.paused:
            return ()
        return (*flow.versions, *self._names_to(flow, 0 if seen is None else seen.last))

    def _names_to(self, flow: Flow, last: int) -> tuple[str, ...]:
        """Return the same tuple while nothing has changed: workers compare it before every fetch."""
        name = flow.policy.tenant, flow.name
        known = self._names.get(name)
        if known is None or known[0] != last:
            known = last, tuple(release_name(number) for number in range(1, last + AHEAD + 1))
            self._names[name] = known
        return known[1]

    def _list_when_due(self) -> None:
        now = self._clock.monotonic()
        with self._mutex:
            if self._listed_at is not None and now - self._listed_at < LISTED:
                return
            self._listed_at = now
        try:
            records = block(scan_all(self._store, LIVE_KIND))
        except StoreError as error:
            log.warning("the live releases cannot be listed, those known are served: %s", error)
            return
        for record in records:
            _, tenant, name = record.at.space.split("/", 2)
            self._seen[tenant, name] = SeenLive.read(now, read_live(record))


class ScratchFlows(ChainMap[str, Flow]):
    """An app's flows, without its own version of the one that is compiled: it would be refused as a namesake."""

    def __init__(self, flows: MutableMapping[str, Flow], compiled: str) -> None:
        super().__init__({}, flows)
        self._compiled = compiled

    def __getitem__(self, name: str) -> Flow:
        return self.maps[0][name] if name == self._compiled else super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        return name in self.maps[0] if name == self._compiled else super().__contains__(name)


def scratch_app(app: App, flow: str) -> App:
    """Return a view of an app on which a release of this flow can be compiled. The app itself stays as it is."""
    view = copy.copy(app)
    view.flows, view.hooks, view.consumers = ScratchFlows(app.flows, flow), {}, {}
    view.steps, view.operations = [], {}
    return view
