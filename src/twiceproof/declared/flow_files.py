"""load_flows: the flows of a directory, declared on an app as Python functions are.

`flows/sync_order.flow.yaml` becomes the flow `sync_order`, with the same key, fingerprints and run ids as a function
under `@app.flow` would have, so that a flow can move between a file and code.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from ..app.app import App
from ..errors import Misuse, NotDone
from ..flows.calls import start_function
from ..flows.ordering.declaration import by
from ..operations import block
from ..secret import env
from .connections import Connections
from .expression import compiled, holds, to_plain
from .input_schema import text_of_file
from .lint import INPUT_TYPES, lint, read_input_type, source_name, source_options
from .live import CompiledRelease, LiveReleases, scratch_app
from .model import FlowFile, TriggerSpec
from .nodes import LintProblem
from .reading import ReadFlow, read_flow
from .template import key_template, read_value
from .tenants import TenantConnections

if TYPE_CHECKING:
    from .body import FlowBody

__all__ = ["SUFFIX", "TenantBodies", "compile_file", "declare_flow", "find_files", "load_flows", "problems_of"]


SUFFIX = ".flow.yaml"
FIRST = "1970-01-01T00:00:00Z"  # start time of a poll's first request, if the file does not name one


def load_flows(app: App, directory: str | Path, *, released: bool = False) -> dict[str, Any]:
    """Declare the flows of a directory on an app, with their triggers. Returns them by name, as functions.

    Where a release of a flow is live (`twiceproof flows promote`), new runs begin on that release, and not on the file.

    Args:
        app: The app that runs them.
        directory: Where the files `NAME.flow.yaml` are, and beside them `connections.yaml`, for another tenant than
            the app's own `connections.TENANT.yaml`. A relative path starts at the file that calls this.
        released: Start nothing but live releases: a flow without one refuses to start.
    """
    folder = _resolved(Path(directory), sys._getframe(1).f_code.co_filename)
    files = find_files(folder)
    if not files:
        raise Misuse(f"There is no file *{SUFFIX} in {folder}; write one, or correct the path.")
    connections = TenantConnections(folder, app.settings.tenant)
    read = {file: read_flow(text_of_file(file)) for file in files}
    _refuse_problems(read, connections, app.settings.tenant)
    named = {one.file.flow: one for one in read.values() if one.file is not None}
    releases = LiveReleases(app, compile_file, only=released, files=named, connections=connections)
    made = [_declare(app, read[file], connections, releases) for file in files]
    return {function.flow.name: function for function in made}


def find_files(folder: Path) -> list[Path]:
    """The flow files of a directory, in the order of their names."""
    return sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []


def problems_of(file: Path, connections: Connections) -> list[LintProblem]:
    """Return what is wrong with a file, and with its use of the connections, if there is a file of these."""
    known = connections if Path(connections.file).is_file() else None
    return lint(read_flow(text_of_file(file)), known)


def _resolved(directory: Path, caller: str) -> Path:
    return directory if directory.is_absolute() else Path(caller).resolve().parent / directory


def _refuse_problems(read: Mapping[Path, ReadFlow], connections: TenantConnections, own: str) -> None:
    """Refuse all files if one has errors: with half of its flows an app would lose the events of the others."""
    lines = [_line(Path(one.file), problem) for one in connections for problem in one.problems]
    for file, flow in read.items():
        lines += [_line(file, problem) for problem in lint(flow, connections.of(own)) if problem.level == "error"]
    if lines:
        more = f"\n… and {len(lines) - 10} more" if len(lines) > 10 else ""
        raise Misuse("\n".join(lines[:10]) + more + "\nCorrect them; with reasons: twiceproof flows lint")


def _line(file: Path, problem: LintProblem) -> str:
    instead = f" (instead: {problem.instead})" if problem.instead else ""
    return f"{file.name}:{problem.place.line}:{problem.place.column}: {problem.rule}: {problem.found}{instead}"


# -- one flow ------------------------------------------------------------------------------------


class TenantBodies:
    """The steps of a file, compiled for each tenant with that tenant's connections, and used for its runs alone."""

    def __init__(self, app: App, read: ReadFlow, connections: TenantConnections) -> None:
        self._app = app
        self._read = read
        self._connections = connections
        self._known: dict[str, FlowBody] = {}

    def of(self, tenant: str) -> FlowBody:
        """Return a tenant's steps. Raises Misuse if it has not the connections that they need."""
        known = self._known.get(tenant)
        if known is None:
            assert self._read.file is not None  # noqa: S101 - sound files only
            own = tenant == self._app.settings.tenant  # another tenant's steps are not declared on the app again
            view = self._app if own else scratch_app(self._app, self._read.file.flow)
            known = self._known.setdefault(tenant, _body(view, self._read, self._connections.of(tenant)))
        return known


def _body(app: App, read: ReadFlow, connections: Connections) -> FlowBody:
    from .body import FlowBody  # a late import: it brings HTTP and mail

    return FlowBody(app, read, connections)


def _declare(app: App, read: ReadFlow, connections: TenantConnections, releases: LiveReleases) -> Any:
    file, own = read.file, app.settings.tenant
    assert file is not None  # noqa: S101 - sound files only
    bodies = TenantBodies(app, read, connections)
    bodies.of(own)
    function = declare_flow(app, read, bodies.of, file.version, file.accepts)
    function.flow.releases = releases
    releases.prepare[file.flow] = bodies.of
    for trigger in file.on:
        if isinstance(trigger, TriggerSpec):
            _declare_trigger(app, function, trigger, file, connections.of(own), releases)
    return function


def compile_file(
    app: App, read: ReadFlow, connections: Connections, version: str, name: str | None = None
) -> CompiledRelease:
    """Compile a file as one version of its flow, without its triggers. `app` is a view of its own: `scratch_app`.

    Args:
        app: Where the flow is declared.
        read: The file. It must be sound.
        connections: Its connections, on the side that is meant.
        version: The version of its runs.
        name: The operation, if not the flow's name.
    """
    file = read.file
    assert file is not None  # noqa: S101 - sound files only
    known = app.runtime.lives.get(name or file.flow)
    body = _body(app, read, connections)
    function = declare_flow(app, read, lambda tenant: body, version, (), name)
    if known is not None:  # an old release does not change the retention of other releases' runs
        app.runtime.lives[name or file.flow] = known
    triggers = {
        _trigger_name(trigger, file): _made_by(trigger, file, connections)
        for trigger in file.on
        if isinstance(trigger, TriggerSpec)
    }
    return CompiledRelease(function.flow, triggers)


def declare_flow(
    app: App,
    read: ReadFlow,
    body: Callable[[str], FlowBody],
    version: str,
    accepts: Sequence[str] = (),
    name: str | None = None,
) -> Any:
    """Declare the flow of a file. `body`: the steps of a tenant, by its name."""
    file = read.file
    assert file is not None  # noqa: S101 - sound files only
    returns = read_value(file.returns)

    def run(**inputs: Any) -> Any:
        _refuse_misfit(file, inputs)
        return body(app.runtime.tenant).run(inputs, returns, app.correlation())

    def follow_failure(inputs: dict[str, Any], error: BaseException) -> None:
        body(app.runtime.tenant).follow_failure(inputs, error)

    decorate = app.flow(
        key_template(file.key),
        name=name or file.flow,
        version=version,
        accepts=accepts,
        on_duplicate=file.on_duplicate,
        keep=file.keep,
        keep_history=file.keep_history,
        keep_failed=file.keep_failed,
        lease=file.lease,
        ignore=file.ignore,
        limit=file.limit,
        limit_per=None if file.limit_per is None else {key_template(k): n for k, n in file.limit_per.items()},
        rate=file.rate,
        priority=file.priority,
        order=None if file.order is None else by(key_template(file.order.object), key_template(file.order.version)),
    )
    function = decorate(_named(run, file))
    function.flow.on_failure = follow_failure if read.on_error else None
    return function


def _named(run: Callable[..., Any], file: FlowFile) -> Callable[..., Any]:
    """Give the function the name, the parameters and the types of the flow."""
    kinds = {name: _annotation(declared) for name, declared in file.input.items()}
    place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    empty = inspect.Parameter.empty
    parameters = [
        inspect.Parameter(name, place, default=None if _is_optional(file.input[name]) else empty, annotation=kind)
        for name, kind in kinds.items()
    ]
    run.__name__, run.__qualname__, run.__doc__ = file.flow, f"{file.flow}{SUFFIX}", file.about
    run.__annotations__ = dict(kinds)
    run.__signature__ = inspect.Signature(_required_first(parameters))  # type: ignore[attr-defined]
    return run


def _required_first(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return sorted(parameters, key=lambda parameter: parameter.default is not inspect.Parameter.empty)


def _is_optional(declared: Any) -> bool:
    kind = read_input_type(declared)
    return kind is not None and kind[1]


def _annotation(declared: Any) -> Any:
    kind = read_input_type(declared)
    word, optional = kind if kind is not None else ("any", False)
    annotation = INPUT_TYPES[word]
    return annotation | None if optional and annotation is not Any else annotation


def _refuse_misfit(file: FlowFile, inputs: Mapping[str, Any]) -> None:
    """Fail the run with the path of the first field that is missing or has another type. Additional fields are
    accepted.
    """
    for name, declared in file.input.items():
        _fit(to_plain(inputs.get(name)), declared, name)


def _fit(value: Any, declared: Any, path: str) -> None:
    if isinstance(declared, dict):
        if not isinstance(value, dict):
            raise NotDone(f"the input {path} is no map.", final=True)
        for name, inner in declared.items():
            if name not in value and not _is_optional(inner):
                raise NotDone(f"the input {path}.{name} is missing.", final=True)
            _fit(value.get(name), inner, f"{path}.{name}")
        return
    try:
        msgspec.convert(value, _annotation(declared))
    except msgspec.ValidationError:
        raise NotDone(f"the input {path} is not {declared}.", final=True) from None


# -- triggers ------------------------------------------------------------------------------------


def _trigger_name(trigger: TriggerSpec, file: FlowFile) -> tuple[str, str]:
    """Return a name that identifies a trigger within its flow in every release: its kind, and its name or place."""
    if trigger.webhook is not None:
        return "webhook", trigger.name or source_name(trigger.webhook)
    if trigger.queue is not None:
        return "queue", str(trigger.options.get("name") or trigger.queue)
    if trigger.poll is not None:
        return "poll", trigger.poll
    if trigger.manual is not None:
        return "manual", trigger.manual
    return "schedule", trigger.name or f"{file.flow}_schedule"


def _declare_trigger(
    app: App,
    function: Any,
    trigger: TriggerSpec,
    file: FlowFile,
    connections: Connections,
    releases: LiveReleases,
) -> None:
    """Declare a trigger. How it makes the flow's input is read from the live release each time."""
    make, (kind, title) = _made_by(trigger, file, connections), _trigger_name(trigger, file)
    if kind == "webhook":
        secret: Any = () if trigger.secret is None else env(trigger.secret.removeprefix("env:"))
        source = source_name(str(trigger.webhook))
        app.webhook(source, secret=secret, start=function, name=trigger.name, **source_options(trigger, source))(make)
        app.hooks[title] = structs.replace(app.hooks[title], latest=releases.live_hook)
    elif kind == "queue":
        app.consume(str(trigger.queue), start=function, **trigger.options)(make)
        app.consumers[title] = structs.replace(app.consumers[title], latest=releases.live_hook)
    elif kind == "poll":

        def poll(since: Any) -> list[Any]:
            live = block(releases.live_release(function.flow.here()))
            ask = make if live is None else live.triggers.get((kind, title))
            found: list[Any] = [] if ask is None else ask(since)
            return found

        options: Any = {} if trigger.overlap is None else {"overlap": trigger.overlap}
        app.poll(every=trigger.every or "10m", start=function, name=title, tz=trigger.tz, **options)(poll)
    elif kind == "schedule":
        when = trigger.schedule if trigger.schedule is not None else trigger.every

        def fire(tick: Any) -> None:
            flow = function.flow.here()
            live = block(releases.live_release(flow)) or CompiledRelease(flow, {(kind, title): make})
            _fire(live, live.triggers.get((kind, title)), tick)

        given = {"overlap": trigger.overlap, "catch_up": trigger.catch_up}
        told: Any = {name: value for name, value in given.items() if value is not None}
        app.every(when or "", tz=trigger.tz, name=title, **told)(fire)


def _polling(trigger: TriggerSpec, connections: Connections, make: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """Return a function that requests everything since the last poll, and makes an input from each item."""
    from .effects import read_once

    items, ask = compiled(trigger.items or "body"), read_once(str(trigger.http), connections)

    def poll(since: Any) -> list[Any]:
        begin = trigger.since or FIRST
        answer = ask({"since": begin if since is None else since.isoformat(), "now": since})
        found = items.evaluate(answer)
        if not isinstance(found, list):
            raise NotDone(f"items: {trigger.items} is no list.", final=True)
        return [made for made in map(make, found) if made is not None]

    return poll


def _made_by(trigger: TriggerSpec, file: FlowFile, connections: Connections) -> Callable[[Any], Any]:
    """Return a function that makes the input from an event; for a poll, one that requests the items and makes their
    inputs.
    """
    make = _given(trigger, file)
    return make if trigger.poll is None else _polling(trigger, connections, make)


def _fire(live: CompiledRelease, make: Callable[[Any], Any] | None, tick: Any) -> None:
    """Start the run of a tick, if the release has this schedule and `only` accepts it."""
    given = None if make is None else make({"tick": tick.isoformat()})
    if given is not None:
        names = live.flow.inputs.names
        start_function(live.flow)(**(given if isinstance(given, dict) and len(names) > 1 else {names[0]: given}))


def _given(trigger: TriggerSpec, file: FlowFile) -> Callable[[Any], Any]:
    """Return a function that makes the flow's input from an event, by `only` and `give`; None from it: nothing to
    do.
    """
    only = None if trigger.only is None else compiled(trigger.only)
    give = None if trigger.give is None else read_value(trigger.give)

    def make(payload: Any) -> Any:
        event = to_plain(payload)
        scope = {**(event if isinstance(event, dict) else {}), "event": event, "body": event, "item": event}
        if only is not None and not holds("only", only, scope):
            return None
        if give is None:
            return event
        made = give.evaluate(scope)
        return next(iter(made.values())) if len(file.input) == 1 else made

    return make
