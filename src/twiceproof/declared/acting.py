"""The acting steps of a file as declared steps: effects, Python functions, stored values, notices about approvals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from msgspec import structs

from ..app.app import App
from ..effects.repeat import SAFE, Declared, Retry, declare
from ..effects.ssh import ssh_start
from ..errors import NotDone
from ..flows.effect_step import EffectStep
from ..flows.engine.decisions import StepPlan
from ..flows.engine.step_errors import BrokenFlowText
from ..flows.step import Step
from ..keys.duration import seconds
from .connections import Connection, Connections, secret_of
from .effects import declared_repeat, describer, redacting
from .expression import NameUse, compiled, to_plain
from .model import ActingSpec, ApproveSpec, CallSpec, KeepSpec, RemoteSpec, RetrySpec
from .names import imported, uses_of
from .notices import asking
from .reading import ReadStep
from .template import read_text, read_value

__all__ = ["StepDeclarer", "names_in", "step_name"]


Scope = dict[str, Any]


class StepDeclarer:
    """Declares the acting steps of one file on an app."""

    def __init__(self, app: App, connections: Connections) -> None:
        self._app = app
        self._connections = connections

    def acting(self, step: ReadStep, in_each: bool, *, undoes: bool = False) -> Step:
        """Declare a step that acts, and the step that undoes it."""
        spec = step.spec
        assert isinstance(spec, ActingSpec)  # noqa: S101 - the caller asked
        undo = None if step.undo is None else self.acting(step.undo, in_each, undoes=True)
        options: dict[str, Any] = {"name": step_name(step), "undo": undo, "external": _external(spec)}
        options["own_id"] = None if undoes else _own_id(spec, in_each)
        if isinstance(spec, CallSpec) and not self._connections.stands_in(spec):
            return self._added(self._called(spec, options, is_caught=in_each or spec.on_error is not None))
        return self._added(self._described(spec, options))

    def _added(self, made: Step) -> Step:
        self._app.steps.append(made)
        return made

    def _described(self, spec: ActingSpec, options: dict[str, Any]) -> EffectStep:
        describe = describer(spec, self._connections)

        def build(given: Scope, item_id: str = "", result: Any = None) -> Any:
            return describe({**given, "result": to_plain(result)})

        limit = None if spec.timeout is None else seconds(spec.timeout, name="timeout")
        return EffectStep(build, self._app.runtime, retry=read_retry(spec.retry), timeout=limit, **options)

    def _called(self, spec: CallSpec, options: dict[str, Any], *, is_caught: bool) -> Step:
        function, values = imported(spec.call), read_value(spec.given)
        declared = getattr(function, "step", None)
        function = function if declared is None else declared.function
        repeat, hide = self._repeat_of_call(spec), redacting(spec)
        limit = None if spec.timeout is None else seconds(spec.timeout, name="timeout")

        def call(given: Scope, item_id: str = "", result: Any = None) -> Any:
            returned = function(**values.evaluate({**given, "result": to_plain(result)}))
            return returned if hide is None else hide(returned)

        call = _as_failure(call) if is_caught else call
        return Step(call, StepPlan(repeat, read_retry(spec.retry) or Retry(), limit), **options)

    def _repeat_of_call(self, spec: CallSpec) -> Declared:
        """Return the file's declaration of a function, with a probe that gets the step's arguments; otherwise the
        function's own.
        """
        declared = declared_repeat(spec, self._connections, {}, 0.0)[0]
        if declared is None or declared.probe is None:
            return declare(_own_repeat(spec) if declared is None else declared)

        def probe(given: Scope, effect_key: str) -> Any:
            look = declared_repeat(spec, self._connections, given, 0.0)[1]
            return None if look is None else look(effect_key)

        return structs.replace(declared, probe=probe)

    # -- steps of our own ------------------------------------------------------------------------

    def keeping(self, step: ReadStep, in_each: bool) -> Step:
        """Declare the step that stores a large value. A repeat stores the same value at the same place."""
        spec, app = step.spec, self._app
        assert isinstance(spec, KeepSpec)  # noqa: S101 - by its verb
        value, name = compiled(spec.keep), read_text(spec.name)

        def keep(given: Scope, item_id: str = "") -> Any:
            found = value.evaluate(given)
            data = found if isinstance(found, str) else _json(found)
            kept = app.resource(data, name=name.render(given), media_type=spec.media)
            return to_plain(kept)

        own_id = "{item_id}" if in_each else None
        keep = _as_failure(keep) if in_each else keep
        return self._added(Step(keep, StepPlan(SAFE, Retry()), name=step.name or "keep", own_id=own_id))

    def asking(self, step: ReadStep, in_each: bool) -> Step:
        """Declare the step that tells people of an approval. A second notice about one approval changes nothing."""
        spec, app = step.spec, self._app
        assert isinstance(spec, ApproveSpec) and spec.ask is not None  # noqa: S101 - the caller asked
        describe, show = asking(spec.ask, self._connections), read_value(spec.show)
        links = any(use.path[0] == "link" for use in read_text(spec.ask.text).names)
        links = links and not self._connections.stands_in(spec.ask)  # a draft that tells no one has no address either

        def ask(given: Scope, item_id: str = "") -> None:
            link = app.approval_url(spec.approve, show=show.evaluate(given)) if links else ""
            describe({**given, "link": link}).perform(app.effect_key())

        own_id = "{item_id}" if in_each else None
        ask = _as_failure(ask) if in_each else ask
        return self._added(Step(ask, StepPlan(SAFE, Retry()), name=f"ask_{spec.approve}", own_id=own_id))

    def remote(self, spec: RemoteSpec) -> Callable[[Scope], Any]:
        """Return a function that starts a command elsewhere and waits for its callback. A draft only waits, or has the
        answer from a test.
        """
        if self._connections.stand_in is not None and self._connections.stands_in(spec):
            answer, own = self._connections.stand_in.callback(spec.callback), self._app
            return lambda scope: own.wait_for(spec.callback, timeout=spec.timeout) if answer is None else answer
        to = self._connections.get(spec.remote.partition(" ")[2].strip(), "ssh")
        command, app = read_value(spec.command), self._app

        def run(scope: Scope) -> Any:
            words = command.evaluate(scope)
            if not isinstance(words, str | list):
                raise BrokenFlowText("command: is neither a text nor a list of texts.", final=True)
            program = words if isinstance(words, str) else [str(word) for word in words]
            start = ssh_start(str(to.ssh), program, **_ssh(to))
            retry = read_retry(spec.retry)
            return app.remote(start=start, callback=spec.callback, timeout=spec.timeout, retry=retry)

        return run


def _as_failure(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a broken text a failure of the step, where the file says what follows from one."""

    @wraps(function)
    def work(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BrokenFlowText as error:
            raise NotDone(str(error), final=True) from None

    return work


def step_name(step: ReadStep) -> str:
    """Return the name of an acting step in the ledger: given, or made from the verb and its target."""
    return step.name or f"{step.verb}_{getattr(step.spec, step.verb)}"


def names_in(step: ReadStep) -> Iterator[NameUse]:
    """Every name that an acting step reads, its undo's and its probe's included."""
    yield from uses_of(step)
    if step.undo is not None:
        yield from names_in(step.undo)


def read_retry(spec: RetrySpec | None) -> Retry | None:
    return None if spec is None else Retry(spec.attempts, spec.first, spec.most, spec.within)


def _own_id(spec: ActingSpec, in_each: bool) -> Any:
    if spec.id is None:
        return "{item_id}" if in_each else None
    text = read_text(spec.id)
    if not in_each:
        return lambda given: text.render(given)
    return lambda given, item_id: f"{item_id}:{text.render(given)}"


def _external(spec: ActingSpec) -> Callable[[dict[str, Any]], str] | None:
    if spec.external is None:
        return None
    text = read_text(spec.external)

    def make(known: dict[str, Any]) -> str:
        try:
            return text.render({**known["given"], "result": to_plain(known["result"])})
        except NotDone:  # a completed step must be recorded
            return ""

    return make


def _own_repeat(spec: CallSpec) -> Any:
    """A function under @app.step brings its own declaration."""
    step = getattr(imported(spec.call), "step", None)
    return "never" if step is None else step.plan.repeat


def _json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _ssh(to: Connection) -> dict[str, Any]:
    """Return the options of asyncssh, which reads a key from a file itself. A key in the environment is read when it is
    needed.
    """
    made: dict[str, Any] = {"username": to.user} if to.user else {}
    if to.known_hosts is not None:
        made["known_hosts"] = _path(to.known_hosts)
    if to.password is not None:
        made["password"] = _secret(to.password)
    if to.key is not None:
        made["client_keys"] = [_path(to.key)] if to.key.startswith("file:") else [_imported_key(to.key)]
    return made


def _path(reference: str) -> str:
    return reference.removeprefix("file:")


def _secret(reference: str) -> str:
    return secret_of(reference).values()[0]


def _imported_key(reference: str) -> Any:
    import asyncssh

    return asyncssh.import_private_key(_secret(reference))
