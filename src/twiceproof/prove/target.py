"""What is proved: a flow, the app it belongs to, and what it is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from ..app import App
from ..claims.claim import DONE
from ..claims.once import Once
from ..errors import KeyRefused, Misuse
from ..flows.flow import Flow
from ..flows.step import Step
from .guarded import Guarded

__all__ = ["Target", "spread", "target_of"]


class Target(Struct, frozen=True):
    app: App
    flow: Flow | Guarded
    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    then: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = ()  # later events of the same object
    callbacks: dict[str, Any] = {}  # what is sent to the run's waits, by name
    approve: tuple[str, ...] = ()  # approvals that somebody says yes to
    ends: str = DONE  # the state that one clean run comes to: one that fails by mistake would prove nothing
    real: tuple[str, ...] = ()  # what it may reach, though nobody stands in for it

    @property
    def acting(self) -> list[Step | Once]:
        """What has effects: the app's steps, and the guarded function itself."""
        return [*self.app.steps, *([self.flow.once] if isinstance(self.flow, Guarded) else [])]


def target_of(function: Any, *args: Any, **kwargs: Any) -> Target:
    flow = _flow_of(function)
    if flow is None:
        raise Misuse("prove needs a function under @app.flow or @app.once; name one, such as shop:sync_order.")
    _refuse_changing(flow.key(args, kwargs), flow.key(args, kwargs))  # with what it cannot be called, is told here too
    return Target(_app_of(flow), flow, function, args, kwargs)


def _refuse_changing(key: str, again: str) -> None:
    """No two deliveries would be known as one, and the play could not find its own run."""
    if key != again:
        raise Misuse(
            f"The key is another one each time it is asked for ({key!r}, then {again!r}), so every delivery is new; "
            "make it of an id that the event carries."
        )


def spread(function: Any, event: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An event is passed whole to a flow with one parameter, otherwise spread by name.

    As plain data, as a webhook does it; as the annotations say where the key is made of attributes.
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
        raise Misuse(f"The event does not fit {flow.name}({', '.join(names)}): {error}; correct it.") from None
    return given


def _flow_of(function: Any) -> Flow | Guarded | None:
    flow, once = getattr(function, "flow", None), getattr(function, "once", None)
    if isinstance(once, Once):
        return Guarded(once, next((app.parts for app in _apps(once.function) if _knows(app, once)), None))
    return flow if isinstance(flow, Flow) else None


def _app_of(flow: Flow | Guarded) -> App:
    for app in _apps(flow.function):
        if app.parts is flow.parts:
            return app
    raise Misuse(f"The app of {flow.name} was not found beside it; keep it in a variable of the same module.")


def _apps(function: Any) -> Iterator[App]:
    """Found where the function finds it: among the names that it can see."""
    function = inspect.unwrap(function)
    seen = [*inspect.getclosurevars(function).nonlocals.values(), *getattr(function, "__globals__", {}).values()]
    return (value for value in seen if isinstance(value, App))


def _knows(app: App, once: Once) -> bool:
    return app.operations.get(once.policy.operation) is once
