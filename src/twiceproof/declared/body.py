"""The body of a flow that is written in a file: carries out its steps in order, as a Python flow's function would.

Between steps it is pure: every expression is evaluated from the run's input and the recorded results of its steps, so
that a replay takes the same branches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from msgspec import UNSET, Struct

from ..app.app import App
from ..app.functions import wrapped_flow, wrapped_step
from ..claims.claim import shown_run
from ..errors import FlowError, NotDone, StepFailed, WaitSwallowed
from ..flows.engine.context import current_session
from ..flows.engine.step_errors import BrokenFlowText
from ..flows.step import Step
from .acting import StepDeclarer, names_in
from .connections import Connections, StandInProvider
from .expression import NameUse, compiled, holds, to_plain
from .model import (
    ActingSpec,
    ApproveSpec,
    DoneSpec,
    EachSpec,
    FailSpec,
    PublishSpec,
    RemoteSpec,
    SetSpec,
    SleepSpec,
    SubflowSpec,
    UntilSpec,
    WaitSpec,
)
from .reading import BranchSteps, ReadFlow, ReadStep
from .template import Formula, read_text, read_value

__all__ = ["Ended", "FlowBody"]


Scope = dict[str, Any]
Run = Callable[[Scope], "Ended | None"]


class Ended(Struct, frozen=True):
    """Raised to end the flow with this result."""

    result: Any


class FlowBody:
    """The steps of a file, compiled. It keeps no state: a scope is made for every call."""

    def __init__(self, app: App, read: ReadFlow, connections: Connections) -> None:
        self._app = app
        self._connections = connections
        self._declarer = StepDeclarer(app, connections)
        self._run = self._sequence(read.steps, in_each=False)
        self._after_failure = self._sequence(read.on_error, in_each=False)

    def run(self, inputs: Mapping[str, Any], returns: Formula, correlation: str = "") -> Any:
        scope = self._scope(inputs, correlation)
        try:
            ended = self._run(scope)
        except Exception as error:
            _remember(error, _MAIN, scope)
            raise
        return returns.evaluate(self._timed(scope, returns.names)) if ended is None else ended.result

    def follow_failure(self, inputs: Mapping[str, Any], error: BaseException) -> None:
        """Run the steps that follow a final failure: they read the input, the results so far, and `error`."""
        where: tuple[str, Scope] = getattr(error, _WHERE, (_MAIN, {}))
        name, scope = where
        self._after_failure({**self._scope(inputs, self._app.correlation()), **scope, "error": _fault(error, name)})

    def _scope(self, inputs: Mapping[str, Any], correlation: str) -> Scope:
        session = current_session()
        run: Scope = {"correlation": correlation}
        if session is not None:
            run["id"], run["key"] = shown_run(session.claim.run), session.claim.key
        return {**{name: to_plain(value) for name, value in inputs.items()}, "run": run}

    def _timed(self, scope: Scope, names: tuple[NameUse, ...]) -> Scope:
        """Provide `now`, which is recorded when it is read, so that a replay reads the same time."""
        if any(use.path[0] == "now" for use in names):
            return {**scope, "now": self._app.now().isoformat()}
        return scope

    # -- sequences -------------------------------------------------------------------------------

    def _sequence(self, steps: tuple[ReadStep, ...], *, in_each: bool) -> Run:
        compiled_steps = [self._step(step, in_each=in_each) for step in steps]

        def run(scope: Scope) -> Ended | None:
            for step in compiled_steps:
                ended = step(scope)
                if ended is not None:
                    return ended
            return None

        return run

    def _step(self, step: ReadStep, *, in_each: bool) -> Run:
        work = self._named(step, self._work(step, in_each))
        if step.spec.when is None:
            return work
        condition = compiled(step.spec.when)

        def run(scope: Scope) -> Ended | None:
            return work(scope) if holds("if", condition, self._timed(scope, condition.names)) else None

        return run

    def _named(self, step: ReadStep, work: Run) -> Run:
        """Record on an error in which step it arose, and the scope at that moment."""
        if not step.name and step.verb != "fail":
            return work

        def run(scope: Scope) -> Ended | None:
            try:
                return work(scope)
            except Exception as error:
                _remember(error, step.name or step.verb, scope)
                raise

        return run

    def _work(self, step: ReadStep, in_each: bool) -> Run:
        if step.verb == "choose":
            return self._choose(step.branches, in_each)
        if step.verb == "together":
            return self._together(step.steps, in_each)
        if step.verb == "keep":
            return self._keep(step, in_each)
        if step.verb in ("wait", "approve", "sleep", "until", "remote"):
            return self._wait(step, in_each)
        by_verb = {"each": self._each, "done": self._pure, "fail": self._pure, "set": self._pure}
        by_verb |= dict.fromkeys(("flow", "publish"), self._subflow_or_message)
        compile_verb = by_verb.get(step.verb)
        return self._acting(step, in_each) if compile_verb is None else compile_verb(step)

    def _choose(self, branches: tuple[BranchSteps, ...], in_each: bool) -> Run:
        ways = [
            (None if branch.when is None else compiled(branch.when), self._sequence(branch.steps, in_each=in_each))
            for branch in branches
        ]

        def run(scope: Scope) -> Ended | None:
            for condition, steps in ways:
                if condition is None or holds("when", condition, self._timed(scope, condition.names)):
                    return steps(scope)
            return None

        return run

    def _together(self, steps: tuple[ReadStep, ...], in_each: bool) -> Run:
        works = [self._step(step, in_each=in_each) for step in steps]

        def run(scope: Scope) -> None:
            self._app.gather(*(lambda work=work: work(scope) for work in works))

        return run

    def _each(self, step: ReadStep) -> Run:
        spec = step.spec
        assert isinstance(spec, EachSpec)  # noqa: S101 - by its verb
        items, steps = compiled(spec.each), self._sequence(step.steps, in_each=True)
        own_id = read_text(spec.id or "{" + spec.as_ + "}")
        item_steps = steps if spec.on_failure == "fail" else _despite_failures(steps)

        def run(scope: Scope) -> None:
            found = items.evaluate(scope)
            if not isinstance(found, list):
                raise BrokenFlowText(f"each: {spec.each} is no list.", final=True)
            inner: list[Scope] = [{**scope, spec.as_: item} for item in found]
            for one in inner:
                one[ITEM] = own_id.render(one)
            _refuse_equal_ids([one[ITEM] for one in inner])
            self._app.gather(*(lambda one=one: item_steps(one) for one in inner), limit=spec.at_once)
            if step.name:
                scope[step.name] = [_item_and_results(one, scope) for one in inner]

        return run

    # -- values, waits and records of their own --------------------------------------------------

    def _pure(self, step: ReadStep) -> Run:
        spec = step.spec
        if isinstance(spec, SetSpec):
            values = {name: read_value(tree) for name, tree in spec.set.items()}

            def assign(scope: Scope) -> None:
                for name, value in values.items():
                    scope[name] = value.evaluate(self._timed(scope, value.names))

            return assign
        if isinstance(spec, DoneSpec):
            result = read_value(spec.done)
            return lambda scope: Ended(result.evaluate(self._timed(scope, result.names)))
        assert isinstance(spec, FailSpec)  # noqa: S101 - by its verb
        text = read_text(spec.fail)

        def fail(scope: Scope) -> None:
            raise NotDone(text.render(scope), final=True)

        return fail

    def _wait(self, step: ReadStep, in_each: bool) -> Run:
        spec, work = step.spec, self._waiting(step)
        if isinstance(spec, ApproveSpec) and spec.ask is not None:
            work = self._after_notice(step, work, in_each)

        def run(scope: Scope) -> None:
            result = work(scope)
            if step.name:
                scope[step.name] = to_plain(result)

        return run

    def _after_notice(self, step: ReadStep, work: Callable[[Scope], Any], in_each: bool) -> Callable[[Scope], Any]:
        names = [use for use in names_in(step) if use.path[0] != "link"]
        ask = self._recorded(self._declarer.asking(step, in_each), names, in_each)

        def run(scope: Scope) -> Any:
            ask(scope)
            return work(scope)

        return run

    def _waiting(self, step: ReadStep) -> Callable[[Scope], Any]:
        spec, app = step.spec, self._app
        if isinstance(spec, RemoteSpec):
            return self._declarer.remote(spec)
        if isinstance(spec, SleepSpec):
            return lambda scope: app.sleep(spec.sleep)
        if isinstance(spec, UntilSpec):
            moment = compiled(spec.until)
            return lambda scope: app.sleep(_until(moment.evaluate(scope), app.now()))
        if isinstance(spec, WaitSpec):
            options = {} if spec.default is UNSET else {"default": read_value(spec.default).evaluate({})}
            return lambda scope: app.wait_for(spec.wait, timeout=spec.timeout, **options)
        assert isinstance(spec, ApproveSpec)  # noqa: S101 - by its verb
        show, requester = read_value(spec.show), read_text(spec.requester)
        return lambda scope: app.approve(
            spec.approve,
            show=show.evaluate(scope),
            timeout=spec.timeout,
            default=spec.default,
            requester=requester.render(scope),
        )

    def _subflow_or_message(self, step: ReadStep) -> Run:
        """Call another flow, or send a message: each has a key of its own."""
        spec, app = step.spec, self._app
        if self._connections.stand_in is not None and self._connections.stands_in(spec):
            return _answered_by_stand_in(step, self._connections.stand_in)
        if isinstance(spec, SubflowSpec):
            given = read_value(spec.given)

            def call(scope: Scope) -> None:
                called = app.flows.get(spec.flow) or _not_here(spec.flow)
                result = wrapped_flow(called)(**given.evaluate(scope))
                scope[step.name or spec.flow] = to_plain(result)

            return call
        assert isinstance(spec, PublishSpec)  # noqa: S101 - by its verb
        body = read_value(spec.payload)
        key, order = (None if text is None else read_text(text) for text in (spec.key, spec.order))

        def publish(scope: Scope) -> None:
            own = None if key is None else key.render(scope)
            app.send(spec.publish, body.evaluate(scope), key=own, order=None if order is None else order.render(scope))

        return publish

    # -- steps that act --------------------------------------------------------------------------

    def _acting(self, step: ReadStep, in_each: bool) -> Run:
        spec = step.spec
        assert isinstance(spec, ActingSpec)  # noqa: S101 - the other verbs are above
        work = self._recorded(self._declarer.acting(step, in_each), [*names_in(step)], in_each)
        after = self._sequence(step.on_error, in_each=in_each)

        def run(scope: Scope) -> Ended | None:
            ended = None
            try:
                result = work(scope)
            except StepFailed as error:
                if spec.on_error is None:
                    raise
                ended, result = after({**scope, "error": _fault(error, step.name)}), None
            if step.name:
                scope[step.name] = to_plain(result)
            return ended

        return run

    def _keep(self, step: ReadStep, in_each: bool) -> Run:
        work = self._recorded(self._declarer.keeping(step, in_each), [*names_in(step)], in_each)

        def run(scope: Scope) -> None:
            scope[step.name or "keep"] = work(scope)

        return run

    def _recorded(self, step: Step, names: list[NameUse], in_each: bool) -> Callable[[Scope], Any]:
        """Return a call of a step with the names that it reads as its arguments, which are compared in a replay."""
        function = wrapped_step(step)

        def call(scope: Scope) -> Any:
            timed = self._timed(scope, tuple(names))
            given = {use.path[0]: timed[use.path[0]] for use in names if use.path[0] in timed}
            return function(given, timed[ITEM]) if in_each else function(given)

        return call


def _answered_by_stand_in(step: ReadStep, stand_in: StandInProvider) -> Run:
    """For a draft: answer instead of starting another flow or sending a message."""

    def run(scope: Scope) -> None:
        if isinstance(step.spec, SubflowSpec):
            scope[step.name or step.spec.flow] = to_plain(stand_in.flow_answer(step.spec.flow))

    return run


ITEM = "item id"  # of the scope inside `each`; no name of a file has a space
_WHERE = "_twiceproof_where"  # of an error: the step in which it arose, and the scope
_MAIN = "the flow"


def _remember(error: BaseException, name: str, scope: Scope) -> None:
    """Record the innermost step: an error passes through the enclosing steps."""
    if not hasattr(error, _WHERE):
        setattr(error, _WHERE, (name, scope))


def _despite_failures(steps: Run) -> Run:
    """Run the steps of an item. A final failure leaves `failed` in the item's results."""

    def run(scope: Scope) -> None:
        try:
            steps(scope)
        except WaitSwallowed:
            raise
        except (FlowError, NotDone) as error:
            name, _ = getattr(error, _WHERE, ("", scope))
            scope["failed"] = _fault(error, name)

    return run


def _fault(error: BaseException, name: str) -> dict[str, str]:
    """Return the value of `error` for the steps that follow a failure."""
    if isinstance(error, StepFailed):
        fault = error.data["fault"]
        return {"step": str(error.data["step"]), "type": fault.type, "message": fault.message}
    return {"step": name, "type": type(error).__name__, "message": str(error)}


def _not_here(name: str) -> NoReturn:
    """A mistake of what runs here, not of the event: nothing is undone for it, and the run goes on after a retry."""
    raise BrokenFlowText(
        f"flow: {name} is not in this process; put {name}.flow.yaml beside the file that calls it, or declare it in "
        "Python, restart, and retry the run.",
        final=True,
    )


def _until(moment: Any, now: datetime) -> float:
    try:
        then = datetime.fromisoformat(moment)
    except (TypeError, ValueError):
        raise BrokenFlowText(
            f"until: {moment!r} is no date; write 2026-03-29 or 2026-03-29T12:00:00Z.", final=True
        ) from None
    return max(0.0, ((then if then.tzinfo else then.replace(tzinfo=UTC)) - now).total_seconds())


def _refuse_equal_ids(ids: list[str]) -> None:
    twice = next((one for one in ids if ids.count(one) > 1), None) if len(set(ids)) < len(ids) else None
    if twice is not None:
        raise BrokenFlowText(f"two items have the id {twice!r}; give id: something that tells them apart.", final=True)


def _item_and_results(one: Scope, outer: Scope) -> dict[str, Any]:
    """Return the item and the results of its steps."""
    return {name: value for name, value in one.items() if name not in outer and name != ITEM}
