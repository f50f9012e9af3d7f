"""What is proved, and with which event."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

from msgspec import Struct, structs

from ..app.app import App
from ..claims.claim import DONE, FAILED, claim_of
from ..claims.once import Once
from ..claims.results import ResultType
from ..errors import KeyRefused, Misuse, TwiceproofError
from ..flows.flow import Flow, Inputs
from ..flows.handle import Handle
from ..flows.runtime import Runtime
from ..flows.step import Step
from ..operations import Operation

__all__ = ["Given", "GuardedFunction", "ProofTarget", "app_of", "other_payload", "spread", "target_of"]


class GuardedFunction:
    """A guarded function as a scenario uses it. It has no waits, so nothing can be started and left waiting."""

    def __init__(self, once: Once, runtime: Runtime | None) -> None:
        self.once = once
        self.runtime: Any = runtime  # None: its app was not found, which is reported before anything runs
        self.name = once.policy.operation
        self.policy = once.policy
        self.claim_requests = once.claim_requests
        self.inputs = Inputs(once.function, self.name)
        self._results = ResultType(once.function, self.name)

    @property
    def function(self) -> Callable[..., Any]:
        return self.once.function

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.once.key(args, kwargs)

    def handle(self, key: str) -> Handle:
        at = self.once.claim_requests.address(key)
        return GuardedHandle(self.runtime, at, self._results)

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation[Handle]:
        raise Misuse(f"{self.name} is under @app.once, where nothing waits; leave --callback and --approve out.")


class GuardedHandle(Handle):
    """A retryable failure is not final: the sender delivers the event again."""

    def state(self) -> Operation[str]:
        state = yield from super().state()
        if state != FAILED:
            return state
        record = (yield from self.runtime.store.read(self.at)).record
        fault = claim_of(record).fault if record is not None else None
        return "retryable" if fault is not None and fault.retryable else state


Given = tuple[tuple[Any, ...], dict[str, Any]]


def other_payload(flow: Flow | GuardedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given | None:
    """A changed payload with the same key; None if every change makes it another event."""
    key = flow.key(args, kwargs)
    for changed in _changes(args, kwargs):
        with suppress(TwiceproofError):
            if flow.key(*changed) == key:
                return changed
    return None


def _changes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Given]:
    for number, value in enumerate(args):
        yield from (((*args[:number], other, *args[number + 1 :]), kwargs) for other in _other_values(value))
    for name, value in kwargs.items():
        yield from ((args, {**kwargs, name: other}) for other in _other_values(value))


def _other_values(value: Any) -> Iterator[Any]:
    """Other values of the same type."""
    if isinstance(value, dict):
        yield {**value, "changed_by_prove": True}
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float | Decimal):
        yield value + 1
    elif isinstance(value, str):
        yield f"{value} (changed by prove)"
    elif isinstance(value, list) and value:
        yield [*value, value[-1]]
    elif isinstance(value, Struct):
        fields = value.__struct_fields__
        yield from (
            structs.replace(value, **{name: other}) for name in fields for other in _other_values(getattr(value, name))
        )
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        yield from (
            dataclasses.replace(value, **{name: other})
            for name in names
            for other in _other_values(getattr(value, name))
        )


class ProofTarget(Struct, frozen=True):
    app: App
    flow: Flow | GuardedFunction
    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    then: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = ()  # later events of the same object
    callbacks: dict[str, Any] = {}  # payloads for the run's waits, by name
    approve: tuple[str, ...] = ()  # approvals that are approved
    reject: tuple[str, ...] = ()  # approvals that are rejected
    may_be_idle: bool = False  # whether one clean run may change nothing outside
    ends: str = DONE  # the expected state of one clean run: a run that fails by mistake would prove nothing
    real: tuple[str, ...] = ()  # hosts that may be reached without a stand-in

    @property
    def acting(self) -> list[Step | Once]:
        """What has effects: the app's steps, and the guarded function itself."""
        return [
            *self.app.steps,
            *self.app.transactions,
            *([self.flow.once] if isinstance(self.flow, GuardedFunction) else []),
        ]


def target_of(function: Any, *args: Any, **kwargs: Any) -> ProofTarget:
    flow = _flow_of(function)
    if flow is None:
        raise Misuse("prove needs a function under @app.flow or @app.once; name one, such as shop:sync_order.")
    _refuse_changing(flow.key(args, kwargs), flow.key(args, kwargs))  # arguments that do not fit are reported here too
    return ProofTarget(app_of(flow), flow, function, args, kwargs)


def _refuse_changing(key: str, again: str) -> None:
    """Refuse a key that changes: no two deliveries would be one, and the scenario could not find its own run."""
    if key != again:
        raise Misuse(
            f"The key is another one each time it is asked for ({key!r}, then {again!r}), so every delivery is new; "
            "make it of an id that the event carries."
        )


def spread(function: Any, event: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pass an event whole to a flow with one parameter, otherwise spread it by name.

    As plain data, as a webhook does; converted by the annotations where the key uses attributes.
    """
    flow = _flow_of(function)
    if flow is None:
        return (event,), {}
    names = flow.inputs.names
    whole = len(names) == 1 or not isinstance(event, dict)
    given = ((event,), {}) if whole else ((), event)
    try:
        flow.key(*given)
    except KeyRefused:
        typed = flow.inputs.typed({names[0]: event} if whole else event)
        return ((typed[names[0]],), {}) if whole else ((), typed)
    except TypeError as error:
        why = str(error).removeprefix(f"{flow.name}: ")
        raise Misuse(f"The event does not fit {flow.name}({', '.join(names)}): {why}; correct it.") from None
    return given


def _flow_of(function: Any) -> Flow | GuardedFunction | None:
    flow, once = getattr(function, "flow", None), getattr(function, "once", None)
    if isinstance(once, Once):
        return GuardedFunction(once, next((app.runtime for app in _apps(once.function) if _knows(app, once)), None))
    return flow if isinstance(flow, Flow) else None


def app_of(flow: Flow | GuardedFunction) -> App:
    """A flow's app is known to it, also where a function made both. That of a guarded function is looked for."""
    if flow.runtime is not None and isinstance(flow.runtime.root.app, App):
        return flow.runtime.root.app
    raise Misuse(f"The app of {flow.name} was not found beside it; keep it in a variable of the same module.")


def _apps(function: Any) -> Iterator[App]:
    """Looked up where the function finds it: among its global and nonlocal names."""
    function = inspect.unwrap(function)
    seen = [*inspect.getclosurevars(function).nonlocals.values(), *getattr(function, "__globals__", {}).values()]
    return (value for value in seen if isinstance(value, App))


def _knows(app: App, once: Once) -> bool:
    return app.operations.get(once.policy.operation) is once
