"""A finding: where it is, why it bites, and what to write instead."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["RULES", "Finding", "Rule"]


class Rule(Struct, frozen=True):
    """One line of the checklist. `why` is one sentence; `instead` is what to write."""

    name: str
    why: str
    instead: str


class Finding(Struct, frozen=True):
    """One place where a rule is not kept. `line` is 0 where the source cannot be read."""

    rule: str
    file: str
    line: int
    where: str  # the flow or step
    found: str
    why: str
    instead: str


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "unit-of-work",
            "Every call has the same key, so the second order is taken for a repeat of the first.",
            'Put what tells two events apart into the key: key="shop:order:{order[id]}".',
        ),
        Rule(
            "unstable-key",
            "A retry makes another key, and the work is done twice.",
            "Use an id of the event itself: its order, message or event id; in a step, app.effect_key().",
        ),
        Rule(
            "undeclared-step",
            "Undeclared, it is never repeated, so every time-out and every crash in it waits for a person.",
            'Say how it may be repeated: @app.step(repeat="safe"), "keyed", check(probe), or "never" on purpose.',
        ),
        Rule(
            "effect-outside-step",
            "A replay runs the flow's body again, and this call with it.",
            "Move it into a function under @app.step(repeat=…).",
        ),
        Rule(
            "own-threads",
            "On a thread of your own a step does not know its run: it is not recorded, and a replay does it again.",
            "Let app.gather or app.each call it; in an `async def` flow, asyncio.to_thread takes the run along.",
        ),
        Rule(
            "forgotten-await",
            "A call that nobody awaits does nothing: the run ends without it, and stops for a person.",
            "Write await before it, or hand it to app.gather.",
        ),
        Rule(
            "own-tasks",
            "asyncio swallows or wraps what a step or wait stops the run with, so it goes on with a wrong answer.",
            "Use app.gather: await app.gather(pay(order), ship(order)).",
        ),
        Rule(
            "async-in-def-flow",
            "A `def` flow cannot await, so the step is called and never begins.",
            "Make the flow an `async def` and await the step, or make the step a `def`.",
        ),
        Rule(
            "keyed-without-key",
            "Declared keyed, it is repeated after a time-out; without our key the provider takes that for a new order.",
            "Send app.effect_key() along, as the provider wants it, or declare check(probe) or never.",
        ),
        Rule(
            "dangerous-before-safe",
            "If what follows fails, something that cannot be taken back has already happened.",
            "Put it last, behind everything that may still fail, or give it an undo.",
        ),
        Rule(
            "missing-undo",
            "When a later step fails for good, what this one did stays done and nobody is told.",
            "Name its compensation: @app.step(…, undo=cancel_it), @app.transaction(undo=cancel_it).",
        ),
        Rule(
            "short-keep",
            "The sender still repeats the event when its key is already forgotten, and the work is done twice.",
            "Give keep= at least as long as the sender tries again.",
        ),
        Rule(
            "create-not-upsert",
            "Declared safe, it may run twice, and the second time it creates a second record.",
            "Write an upsert (INSERT … ON CONFLICT, PUT by your own id), or declare it keyed or check(probe).",
        ),
        Rule(
            "unbounded-retry",
            "A step that never succeeds is tried for ever, and nobody looks at it.",
            'Let @app.step(retry=Retry(attempts=8, within="2d")) do it, and take the loop out.',
        ),
        Rule(
            "batch-with-one-marker",
            "One entry stands for many effects: when the seventh fails, the first six are repeated or all are parked.",
            "Keep state per item: app.each(items, step, key=…), or a step per item with id=.",
        ),
        Rule(
            "loop-without-id",
            "Calls are told apart by their order, and an item more or less makes each the next one's answer.",
            'Give the step an id of the item: @app.step(id="{line[sku]}").',
        ),
        Rule(
            "changing-body",
            "A replay sees another value and goes another way than the first time.",
            "Use app.now(), app.uuid() or app.random(), which are the same in a replay; sort sets before iterating.",
        ),
    )
}
