"""Finds what breaks the rules of `twiceproof check`: in a flow, a step, a guarded function, a webhook."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...claims.once import Once
from ...claims.request import ClaimRequestFactory
from ...flows.effect_step import EffectStep
from ...flows.flow import Flow
from ...flows.step import Step
from ...inbound.hook import Hook
from ...inbound.once_hook import OnceHook
from ...keys.stability import name_sign
from .calls import (
    Arms,
    begins_tasks,
    begins_threads,
    changes_each_time,
    creates,
    draws,
    forgotten,
    in_body,
    never_awaitable,
    parts_of,
    publishes,
    reaches_outside,
    step_of,
    steps_in,
    writes_files,
)
from .http_calls import (
    RequestCall,
    effect_class,
    only_described,
    requests_in,
    sends_mail,
    sends_our_key,
    stated_window,
)
from .rules import RULES, ChecklistFinding
from .source import SourceTree, is_set, literal

__all__ = ["drawn_in_key", "kind_of", "of_flow", "of_hook", "of_once", "of_step"]


LOOPS = (ast.For, ast.AsyncFor, ast.While)
READ_WHOLE = ("read", "read_bytes", "read_text", "getvalue")
HELD_WHOLE = ("content",)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def of_flow(flow: Flow) -> Iterator[ChecklistFinding]:
    source = SourceTree(flow.function)
    yield from _key(flow.name, flow.claim_requests, source)
    yield from _body(flow, source)
    yield from _awaits(flow, source)
    yield from _retries(flow.name, source)
    yield from _order(flow, source)
    yield from _loops(flow, source)


def of_step(step: Step, *, keeps_large: bool) -> Iterator[ChecklistFinding]:
    """`keeps_large`: the app has a place for large values."""
    source = SourceTree(step.function)
    if not keeps_large:
        yield from _whole_results(step, source)
    yield from _declaration(step, source)
    yield from _key_sent(step, source)
    yield from _work(step.name, source, step.plan.repeat.kind, alone=step.transaction is None)
    yield from _requests(step, source)
    if not isinstance(step, EffectStep):
        yield from _described(step.name, source)


def of_once(once: Once) -> Iterator[ChecklistFinding]:
    source, name = SourceTree(once.function), once.policy.operation
    yield from _key(name, once.claim_requests, source)
    yield from _work(name, source, once.policy.repeat)
    yield from _described(name, source)


def _described(name: str, source: SourceTree) -> Iterator[ChecklistFinding]:
    """Effects that a step or guarded function describes as if it performed them."""
    for call in only_described(source, returned=True):
        found = f"{ast.unparse(call.func)}() is only described"
        yield _found("effect-not-performed", source, source.line(call), name, found)


def of_hook(hook: Hook) -> Iterator[ChecklistFinding]:
    started = hook.once if isinstance(hook, OnceHook) else hook.flow
    source = SourceTree(started.function)
    for what, keep in (
        ("its own keep=", hook.policy.life.keep),
        (f"keep= of {hook.target}", started.policy.life.keep),
    ):
        if keep is not None and keep < hook.source.retry_window:
            window = hook.source.retry_window / 3600
            found = f"{what} is {keep / 3600:g} h, and {hook.source.name} tries again for {window:g} h"
            yield _found("short-keep", source, source.first_line, f"webhook {hook.name}", found)


# -- the flow ------------------------------------------------------------------------------------


def _key(name: str, claim_requests: ClaimRequestFactory, source: SourceTree) -> Iterator[ChecklistFinding]:
    maker = claim_requests.maker
    if maker.function is None:
        if not maker.fields:
            yield _found("unit-of-work", source, source.first_line, name, "the key names no argument")
        for field in maker.fields:
            sign = name_sign(field)
            if sign and field.path not in claim_requests.stable:
                yield _found("unstable-key", source, source.first_line, name, f"{field.path} {sign}")
        return
    for part, call, path in _made_anew(claim_requests):
        yield _found("unstable-key", part, part.line(call), name, f"the key is made with {path}()")


def drawn_in_key(claim_requests: ClaimRequestFactory) -> tuple[str, ...]:
    """Calls in a key function that return a new value each time: a clock, random numbers. Nothing for a template."""
    return tuple(dict.fromkeys(path for _, _, path in _made_anew(claim_requests)))


def _made_anew(claim_requests: ClaimRequestFactory) -> Iterator[tuple[SourceTree, ast.Call, str]]:
    """In the key function, and in the helpers it calls."""
    if claim_requests.maker.function is not None:
        for part in parts_of(SourceTree(claim_requests.maker.function)):
            for call in part.calls():
                if changes_each_time(path := part.path(call.func)):
                    yield part, call, path


def _body(flow: Flow, source: SourceTree) -> Iterator[ChecklistFinding]:
    for part, via in in_body(source):
        unperformed = {id(call) for call in only_described(part, returned=part is source)}
        for call in part.calls():
            path = part.path(call.func)
            if reaches_outside(path) or writes_files(path, _texts(call)):
                yield _found("effect-outside-step", part, part.line(call), flow.name, f"{path}() {via}")
            if id(call) in unperformed:
                found = f"{ast.unparse(call.func)}() is only described {via}"
                yield _found("effect-not-performed", part, part.line(call), flow.name, found)
            if begins_threads(path):
                yield _found("own-threads", part, part.line(call), flow.name, f"{path}() {via}")
            if changes_each_time(path):
                yield _found("changing-body", part, part.line(call), flow.name, f"{path}() {via}")
        for loop in part.nodes(ast.For, ast.AsyncFor, ast.comprehension):
            over = loop.iter  # type: ignore[attr-defined]
            if is_set(over, part.local):
                yield _found("changing-body", part, part.line(over), flow.name, f"iterates over a set {via}")


def _awaits(flow: Flow, source: SourceTree) -> Iterator[ChecklistFinding]:
    awaits = isinstance(source.tree, ast.AsyncFunctionDef)
    for part, via in in_body(source):
        if not awaits and not isinstance(part.tree, ast.AsyncFunctionDef):
            for call, what in never_awaitable(part):
                yield _found("async-in-def-flow", part, part.line(call), flow.name, f"{what}() is an `async def` {via}")
            continue
        for call, what in forgotten(part, awaits=awaits):
            yield _found("forgotten-await", part, part.line(call), flow.name, f"{what}() is not awaited {via}")
        for call in part.calls():
            if what := begins_tasks(part, call):
                yield _found("own-tasks", part, part.line(call), flow.name, f"{what}() over steps {via}")


def _order(flow: Flow, source: SourceTree) -> Iterator[ChecklistFinding]:
    called, arms = steps_in(source), Arms(source.body)
    for number, (call, step) in enumerate(called):
        later = [other for at, other in called[number + 1 :] if other is not step and arms.can_follow(call, at)]
        kind = kind_of(step)
        if not later or kind == "safe" or step.undo is not None:
            continue
        line = source.line(call)
        repeatable = [other for other in later if kind_of(other) != "never"]
        if kind == "never" and repeatable:
            found = f"{step.name} cannot be repeated, and {repeatable[0].name} comes after it"
            yield _found("dangerous-before-safe", source, line, flow.name, found)
        else:  # a transaction too: it is committed when its step ends, even if the run fails later
            yield _found("missing-undo", source, line, flow.name, f"{step.name} has no undo=, and is not the last step")


def kind_of(step: Step) -> str:
    """How a step may be repeated; of an effect, what its description shows ("" if it does not)."""
    return effect_class(SourceTree(step.function)) if isinstance(step, EffectStep) else step.plan.repeat.kind


def _loops(flow: Flow, source: SourceTree) -> Iterator[ChecklistFinding]:
    for loop in source.nodes(*LOOPS, *COMPREHENSIONS):
        for call in source.calls(loop):
            step = step_of(source, call.func)
            if step is not None and not step.has_own_id:
                found = f"{step.name} is called in a loop and has no id="
                yield _found("loop-without-id", source, source.line(call), flow.name, found)


# -- what acts -----------------------------------------------------------------------------------


def _declaration(step: Step, source: SourceTree) -> Iterator[ChecklistFinding]:
    """Looks at the decorator: "never" by default may be an oversight, written out it is a decision."""
    for decorator in source.decorators:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        named = isinstance(call, ast.Attribute) and call.attr == "step"
        if named and not (isinstance(decorator, ast.Call) and literal(decorator, "repeat") is not None):
            yield _found("undeclared-step", source, source.line(decorator), step.name, "no repeat= is given")


def _whole_results(step: Step, source: SourceTree) -> Iterator[ChecklistFinding]:
    """Files and answers that are returned as they were read: nothing else shows a result's size before it is there."""
    for node in source.nodes(ast.Return):
        value = node.value  # type: ignore[attr-defined]
        value = value.value if isinstance(value, ast.Await) else value
        read = value.func if isinstance(value, ast.Call) else value
        names = READ_WHOLE if isinstance(value, ast.Call) else HELD_WHOLE
        if isinstance(read, ast.Attribute) and read.attr in names and not getattr(value, "args", ()):
            yield _found("unkept-result", source, source.line(node), step.name, f"returns {ast.unparse(value)}")


def _key_sent(step: Step, source: SourceTree) -> Iterator[ChecklistFinding]:
    """Whether the key is sent in the step or in what it calls. True where the source cannot be read."""
    if step.plan.repeat.kind != "keyed" or not source.body:
        return
    if sends_our_key(source):
        return
    yield _found("keyed-without-key", source, source.first_line, step.name, "app.effect_key() is nowhere in it")


def _requests(step: Step, source: SourceTree) -> Iterator[ChecklistFinding]:
    """Requests to known providers: whether they carry the key, and for how long that is relied on."""
    for call in requests_in(source):
        found = [*_unkeyed(call, step, source), *_overlong(call, step), *_safe_post(call)]
        name = "" if call.row is None else call.row.id
        for rule, told in found:
            yield _found(rule, source, source.line(call.node), step.name, told, name)


def _unkeyed(call: RequestCall, step: Step, source: SourceTree) -> Iterator[tuple[str, str]]:
    row = call.row
    if row is None or row.kind != "keyed" or call.names_provider or step.plan.repeat.kind == "keyed":
        return
    if not sends_our_key(source):
        yield "provider-without-key", f'{call.path}() to {row.title} without its key (provider="{row.id}")'


def _overlong(call: RequestCall, step: Step) -> Iterator[tuple[str, str]]:
    row, declared = call.row, step.plan.repeat
    stated = stated_window(call) if call.is_ours else declared.window if declared.kind == "keyed" else None
    if row is not None and row.kind == "keyed" and stated is not None and stated > row.window_seconds:
        yield "window-too-long", f"{stated / 3600:g} h are relied on, and {row.title} remembers a key for {row.window}"


def _safe_post(call: RequestCall) -> Iterator[tuple[str, str]]:
    given = literal(call.node, "repeat")
    declared = call.is_ours and isinstance(given, ast.Constant) and given.value == "safe"
    if declared and call.method in ("POST", "PATCH") and (call.row is None or call.row.kind != "safe"):
        yield "create-not-upsert", f'{call.path}() with repeat="safe"'


def _mails(name: str, source: SourceTree) -> Iterator[ChecklistFinding]:
    for call, path in sends_mail(source):
        yield _found("mail-as-safe", source, source.line(call), name, f'{path}() where "safe" is declared')


def _work(name: str, source: SourceTree, repeat: str, *, alone: bool = True) -> Iterator[ChecklistFinding]:
    """`alone`: what it does is not in the ledger's own transaction."""
    yield from _retries(name, source)
    if repeat == "keyed":
        yield from _drawn(name, source)
    if repeat == "safe":
        yield from _creation(name, source)
        yield from _mails(name, source)
    elif alone:
        yield from _batch(name, source)


def _drawn(name: str, source: SourceTree) -> Iterator[ChecklistFinding]:
    """Sent along, it is another key in every attempt, or another payload under the same key."""
    for call in source.calls():
        if draws(path := source.path(call.func)):
            yield _found("unstable-key", source, source.line(call), name, f'{path}() where "keyed" is declared')


def _creation(name: str, source: SourceTree) -> Iterator[ChecklistFinding]:
    for call in source.calls():
        text = next(iter(_texts(call)), None)
        path = source.path(call.func) or _dotted(call.func)
        if publishes(path) and not sends_our_key(source):
            yield _found("published-by-hand", source, source.line(call), name, f'{path}() where "safe" is declared')
        elif creates(path, text):
            yield _found("create-not-upsert", source, source.line(call), name, f'{path}() where "safe" is declared')


def _retries(name: str, source: SourceTree) -> Iterator[ChecklistFinding]:
    for loop in source.nodes(ast.While):
        assert isinstance(loop, ast.While)
        forever = isinstance(loop.test, ast.Constant) and bool(loop.test.value)
        if forever and any(_goes_round(node) for node in ast.walk(loop)):
            yield _found(
                "unbounded-retry", source, source.line(loop), name, "a loop without an end that catches errors"
            )


def _goes_round(node: ast.AST) -> bool:
    """Whether an error continues the loop: a handler that raises or leaves does not."""
    return isinstance(node, ast.Try) and any(
        not isinstance(handler.body[-1], ast.Raise | ast.Return | ast.Break) for handler in node.handlers
    )


def _batch(name: str, source: SourceTree) -> Iterator[ChecklistFinding]:
    for loop in source.nodes(ast.For, ast.AsyncFor, *COMPREHENSIONS):
        called = next((path for call in source.calls(loop) if reaches_outside(path := source.path(call.func))), "")
        if called:
            yield _found(
                "batch-with-one-marker", source, source.line(loop), name, f"{called}() once per item of a loop"
            )


# -- reading -------------------------------------------------------------------------------------


def _texts(call: ast.Call) -> list[str]:
    given = [*call.args, *(word.value for word in call.keywords)]
    return [arg.value for arg in given if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]


def _dotted(node: ast.AST) -> str:
    """As written, where its meaning is unknown."""
    return ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""


def _found(rule: str, source: SourceTree, line: int, where: str, found: str, provider: str = "") -> ChecklistFinding:
    known = RULES[rule]
    return ChecklistFinding(rule, source.file, line, where, found, known.why, known.instead.replace("NAME", provider))
