"""Step: one declared step; StepCall: one call of it; `external=`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from inspect import Parameter
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from msgspec import Struct

from ..claims.claim import validate_name
from ..claims.once import refuse_generators
from ..claims.request import Arguments, operation_name
from ..claims.results import ResultType
from ..errors import KeyRefused, Misuse, NotDone
from ..keys import KeyMaker, Template
from .engine.decisions import StepPlan
from .engine.step_identity import arguments_digest

if TYPE_CHECKING:
    from .transaction import Transaction

__all__ = ["Step", "StepCall", "StepFunction", "called_with", "external_maker"]


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class StepFunction(Protocol[P, R_co]):
    """What `@app.step` returns in place of a function."""

    step: Step

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class Step:
    """One declared step. It keeps no state: the ledger has what happened."""

    def __init__(
        self,
        function: Callable[..., Any],
        plan: StepPlan,
        *,
        name: str | None = None,
        own_id: str | Callable[..., str] | None = None,
        undo: Step | None = None,
        external: Callable[[dict[str, Any]], str] | None = None,
        transaction: Transaction | None = None,
        guards_itself: bool = False,
    ) -> None:
        called = operation_name(function, name, "step")
        if not callable(function):
            raise Misuse('@app.step takes keywords only; write it as @app.step(repeat="safe").')
        refuse_generators(function)
        self.function = function
        self.plan = plan
        self.name = validate_name("step", called)
        self.undo = undo
        self.external = external
        self.transaction = transaction  # its work and its entry are committed together
        self.guards_itself = guards_itself  # it has a claim or a run of its own: called twice, it acts once
        self.arguments = Arguments(function)
        self.results = ResultType(function, self.name)
        self.is_async = inspect.iscoroutinefunction(function)
        self.blocking: Callable[..., Any] | None = None  # of one that is awaited, and does its work on a thread
        self._refuse_mixed()
        self._refuse_unknown_parameters()
        self._own_id = KeyMaker(own_id, self.arguments.signature) if own_id is not None else None

    def _refuse_mixed(self) -> None:
        """A `def` cannot await its probe or undo: it would count as done without having begun."""
        awaited = "undo" if self.undo is not None and self.undo.is_async else ""
        if inspect.iscoroutinefunction(self.plan.repeat.probe):
            awaited = "probe"
        if awaited and not self.is_async:
            raise Misuse(f"{self.name} is a def, and its {awaited} an `async def`; make both of the same kind.")

    def _refuse_unknown_parameters(self) -> None:
        """Refuse an undo or probe with parameters that the step does not have: it could not be called when needed, and
        the run would stay in review."""
        offered = tuple(self.arguments.signature.parameters)
        for what, function, more in (
            ("undo", None if self.undo is None else self.undo.function, "result"),
            ("probe", self.plan.repeat.probe, "effect_key"),
        ):
            unfilled = [] if function is None else [name for name in _needed(function) if name not in (*offered, more)]
            if unfilled:
                raise Misuse(
                    f"The {what} of {self.name} needs {', '.join(unfilled)}, which {self.name} does not have; "
                    f"it can take {', '.join([*offered, more])}, by these names."
                )

    @property
    def is_asked_about(self) -> bool:
        """Whether it must be known that it may have begun, even without intent: its key expires, or it has an undo."""
        kind = self.plan.repeat.kind
        return kind == "keyed" or (kind == "safe" and self.undo is not None)

    @property
    def may_outlive(self) -> bool:
        """Whether an attempt may go on in this process after it is no longer waited for: a thread cannot be stopped."""
        return self.plan.timeout is not None or (self.blocking is not None and self.plan.repeat.probe is not None)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: dict[str, Any]) -> StepCall:
        """Return a call of this step, with a digest of what is asked for."""
        return StepCall(self, name, args, kwargs, arguments, arguments_digest(arguments))

    def asked(self, given: dict[str, Any]) -> str:
        """Return the digest of a call with these keyword arguments."""
        return arguments_digest(self.arguments.bind((), given))

    @property
    def has_own_id(self) -> bool:
        return self._own_id is not None

    def own_id(self, arguments: dict[str, Any]) -> str | None:
        """Return the id that distinguishes this call from others of the same step: in loops, the item's."""
        return self._own_id.make(arguments) if self._own_id is not None else None

    def call_plain(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call a `def`. A coroutine that it returns has not begun: recorded as done, its work would be lost."""
        value = self.function(*args, **kwargs)
        if type(value) is CoroutineType:
            value.close()
            raise NotDone(f"{self.name} is a def that returns a coroutine; make it an `async def`.", final=True)
        return value

    def probe_of(self, given: dict[str, Any], asked: str) -> Callable[..., Any] | None:
        """Return the probe of a call that is known by its arguments, as far as they are known, and by their recorded
        digest. None: it has none, or the call cannot be told by these."""
        return self.plan.repeat.probe

    def several(self, value: Any) -> tuple[str, ...]:
        """Return the ids of the records that a result names, if there are several where one should be."""
        return ()

    def probe_call(self, given: dict[str, Any]) -> Callable[[], Any]:
        """Call the probe the way the step is called: an `async def` step may have a plain probe."""
        probe = self.plan.repeat.probe
        assert probe is not None  # noqa: S101 - asked before
        if not self.is_async:
            return lambda: probe(**given)

        async def awaited() -> Any:
            answer = probe(**given)
            return await answer if inspect.isawaitable(answer) else answer

        return awaited


def _needed(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some functions written in C have no signature
        return []
    optional = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is Parameter.empty and each.kind not in optional]


def called_with(function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Return those of the offered arguments that the function names: probes and undos take what they need."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return offered
    return {name: value for name, value in offered.items() if name in parameters}


class StepCall(Struct, frozen=True, eq=False):
    """One call of a step: its name in the ledger, and its arguments. `asked` is their digest."""

    step: Step
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: dict[str, Any]
    asked: str


log = logging.getLogger("twiceproof")


def external_maker(text: str | None) -> Callable[[dict[str, Any]], str] | None:
    """Make the function of `external="invoice:{result[id]}"`. It never raises: a completed step must be recorded."""
    if text is None:
        return None
    template = Template(text)

    def make(known: dict[str, Any]) -> str:
        try:
            return template.render(known)
        except KeyRefused as error:
            log.warning("a step returned no external id: %s", error)
            return ""

    return make
