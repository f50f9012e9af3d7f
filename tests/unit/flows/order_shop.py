"""An object outside that is set to what events say, and remembers every time it was."""

from __future__ import annotations

from typing import Any

from tests.unit.flows.stage import Style
from twiceproof import App, by


class Outside:
    """`applied` is every version an event set, in order, per object."""

    def __init__(self) -> None:
        self.applied: dict[str, list[Any]] = {}
        self.source: dict[str, Any] = {}

    def set(self, thing: str, version: Any) -> None:
        self.applied.setdefault(thing, []).append(version)

    def check(self, thing: str, newest: Any) -> None:
        """Never an older after a newer, each at most once, and the newest at last."""
        seen = self.applied[thing]
        assert seen == sorted(set(seen)), seen
        assert seen[-1] == newest


def declare(app: App, outside: Outside, style: Style | None = None, **options: Any) -> Any:
    """A flow that sets an object to a version, in a step that shows whether it was repeated."""
    order = by(object="{order[id]}", version="{order[v]}", **options)

    def apply(order: dict[str, Any]) -> None:
        outside.set(order["id"], order["v"])

    def steps(order: Any) -> Any:
        yield step(order)
        return f"{order['id']}@{order['v']}"

    if style is None:
        style = Style("def")
    step = style.step(app, apply, repeat="never")
    return style.flow(app, steps, key="order:{order[id]}", order=order, ignore=("order.event",))


def event(version: Any, thing: str = "a", **more: Any) -> dict[str, Any]:
    return {"id": thing, "v": version, **more}
