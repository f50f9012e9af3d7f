"""Group commit: who comes while work is under way goes together, each with an answer of its own."""

import asyncio
import itertools
import linecache
import sys
import threading

import pytest

from tests.unit.stores.group_work import PATIENT, Caller, Work, committer_of, in_line
from twiceproof.errors import StoreUnavailable
from twiceproof.stores.base import SPACE_BUSY
from twiceproof.stores.group_commit import TRIES, Interrupted


def test_a_lone_blocking_caller_works_on_its_own_thread():
    work = Work()
    assert committer_of(work).request("a").block() == "A"
    assert work.threads == [threading.current_thread().name]


def test_a_caller_on_an_event_loop_leaves_the_work_to_the_thread():
    work = Work()
    assert asyncio.run(committer_of(work).request("a").wait()) == "A"
    assert work.threads == ["the thread"]


def test_who_comes_while_work_is_under_way_goes_together():
    work = Work()
    committer = committer_of(work)
    work.hold()
    first = Caller(committer, "first")
    assert work.begun.wait(PATIENT)
    others = [Caller(committer, f"other {nth}") for nth in range(5)]
    in_line(committer, 5)
    work.let_go()
    assert [caller.result() for caller in (first, *others)] == ["FIRST", *(f"OTHER {nth}" for nth in range(5))]
    assert [len(group) for group in work.groups] == [1, 5]


def test_the_next_group_is_led_by_one_of_those_who_waited():
    work = Work()
    committer = committer_of(work)
    work.hold()
    first = Caller(committer, "first")
    assert work.begun.wait(PATIENT)
    second = Caller(committer, "second")
    in_line(committer, 1)
    work.let_go()
    first.result()
    second.result()
    assert work.threads == [first.name, second.name]


def test_all_that_is_ready_on_an_event_loop_goes_in_one_group():
    work = Work()

    async def ask_all():
        committer = committer_of(work)
        return await asyncio.gather(*(committer.request(f"{nth}").wait() for nth in range(20)))

    assert asyncio.run(ask_all()) == [str(nth) for nth in range(20)]
    assert [len(group) for group in work.groups] == [20]


def test_no_group_is_larger_than_the_limit():
    work = Work()

    async def ask_all():
        committer = committer_of(work, limit=8)
        return await asyncio.gather(*(committer.request(f"{nth}").wait() for nth in range(20)))

    assert len(asyncio.run(ask_all())) == 20
    assert [len(group) for group in work.groups] == [8, 8, 4]


async def _rounds(committer, callers, rounds):
    """So many callers who ask again as soon as they are answered."""

    async def caller(number):
        return [await committer.request(f"{number}:{nth}").wait() for nth in range(rounds)]

    return await asyncio.gather(*(caller(number) for number in range(callers)))


@pytest.mark.parametrize(("remote", "most"), [(True, 20), (False, 40)], ids=["done elsewhere", "done here"])
def test_where_the_work_is_done_elsewhere_half_of_the_callers_go_at_a_time(remote, most):
    work = Work()
    answers = asyncio.run(_rounds(committer_of(work, remote=remote), 40, 10))
    assert answers == [[f"{number}:{nth}" for nth in range(10)] for number in range(40)]
    sizes = [len(group) for group in work.groups]
    assert sizes[0] == max(sizes) == most
    assert sum(sizes) / len(sizes) > 0.8 * most


@pytest.mark.parametrize("callers", [1, 2, 8], ids=str)
def test_a_few_callers_go_together_wherever_the_work_is_done(callers):
    work = Work()
    asyncio.run(_rounds(committer_of(work, remote=True), callers, 3))
    assert [len(group) for group in work.groups] == [callers] * 3


def test_callers_who_never_come_back_are_not_counted_on_for_ever():
    work = Work()
    committer = committer_of(work, remote=True)
    for _ in range(3):
        asyncio.run(_rounds(committer, 100, 1))
    work.groups.clear()
    asyncio.run(_rounds(committer, 16, 30))
    assert max(len(group) for group in work.groups[-4:]) == 8


def test_instant_work_is_done_on_the_spot_even_on_an_event_loop():
    work = Work()
    assert asyncio.run(committer_of(work, instant=True).request("a").wait()) == "A"
    assert work.threads == [threading.current_thread().name]


def test_who_finds_instant_work_under_way_waits_for_it_without_holding_up_its_loop():
    work = Work()
    committer = committer_of(work, instant=True)
    work.hold()
    first = Caller(committer, "first")
    assert work.begun.wait(PATIENT)

    async def second():
        asked = asyncio.ensure_future(committer.request("second").wait())
        while not committer._queue:
            await asyncio.sleep(0)
        work.let_go()
        return await asked

    assert asyncio.run(second()) == "SECOND"
    assert first.result() == "FIRST"


def test_an_error_of_instant_work_is_its_callers_alone():
    def fail(items):
        raise ValueError("no")

    committer = committer_of(fail, instant=True)
    with pytest.raises(ValueError, match="no"):
        asyncio.run(committer.request("a").wait())
    assert not committer.busy


def test_items_that_must_stay_apart_never_share_a_group_and_keep_their_order():
    work = Work()
    items = ["a1", "a2", "b1", "a3", "c1", "b2"]

    async def ask_all():
        committer = committer_of(work, separate_by=lambda item: item[0])
        return await asyncio.gather(*(committer.request(item).wait() for item in items))

    assert asyncio.run(ask_all()) == [item.upper() for item in items]
    assert work.groups == [["a1", "b1", "c1"], ["a2", "b2"], ["a3"]]


def test_each_item_of_a_long_queue_is_looked_at_once():
    """Looked through for each group, a hundred thousand writes at once would take minutes."""
    work, looked = Work(answer=lambda item: item), []

    async def ask_all():
        committer = committer_of(work, limit=10, separate_by=lambda item: looked.append(item) or (item,))
        return await asyncio.gather(*(committer.request(nth).wait() for nth in range(1_000)))

    assert asyncio.run(ask_all()) == list(range(1_000))
    assert looked == list(range(1_000))


def test_an_error_of_the_work_is_raised_by_everyone_in_the_group():
    def fail(items):
        raise ValueError("no")

    async def ask_all():
        committer = committer_of(fail)
        return await asyncio.gather(*(committer.request(nth).wait() for nth in range(3)), return_exceptions=True)

    assert [type(answer) for answer in asyncio.run(ask_all())] == [ValueError] * 3
    with pytest.raises(ValueError, match="no"):
        committer_of(fail).request(1).block()


def test_an_error_among_the_answers_is_raised_by_its_own_caller_alone():
    work = Work(answer=lambda item: ValueError(item) if item == "bad" else item)

    async def ask_all():
        committer = committer_of(work)
        asked = [committer.request(item).wait() for item in ("good", "bad", "fine")]
        return await asyncio.gather(*asked, return_exceptions=True)

    good, bad, fine = asyncio.run(ask_all())
    assert (good, fine) == ("good", "fine")
    assert isinstance(bad, ValueError)


@pytest.mark.parametrize("answers", [[], ["a", "b"]])
def test_too_many_or_too_few_answers_are_an_error_and_no_silence(answers):
    committer = committer_of(lambda items: answers)
    with pytest.raises(TypeError, match="answers"):
        committer.request("x").block()


def test_the_committer_works_on_after_an_error():
    work = Work(answer=lambda item: item)
    committer = committer_of(lambda items: work(items) if items != ["bad"] else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        committer.request("bad").block()
    assert committer.request("good").block() == "good"
    assert not committer.busy


def test_an_item_held_elsewhere_is_tried_again_after_a_pause():
    answers = [[SPACE_BUSY], [SPACE_BUSY], ["done"]]
    pauses = []
    committer = committer_of(lambda items: answers.pop(0), sleep=pauses.append)
    assert committer.request("x").block() == "done"
    assert pauses == [0.005, 0.005]


def test_an_item_held_elsewhere_does_not_hold_up_its_neighbours():
    tries = {"held": 0}

    def work(items):
        tries["held"] += "held" in items
        return [SPACE_BUSY if item == "held" and tries["held"] < 3 else item for item in items]

    async def ask_all():
        committer = committer_of(work)
        done = []
        asked = [asyncio.ensure_future(committer.request(item).wait()) for item in ("held", "free")]
        for item in asyncio.as_completed(asked):
            done.append(await item)
        return done

    assert asyncio.run(ask_all()) == ["free", "held"]


def test_an_item_held_for_longer_than_patience_is_given_up():
    committer = committer_of(lambda items: [SPACE_BUSY] * len(items), patience=0.05)
    with pytest.raises(StoreUnavailable, match="held this space") as caught:
        committer.request("x").block()
    assert caught.value.unsure is False
    assert not committer.busy


def interrupting(work, *, times):
    """The work, done; and then whoever did it is interrupted, so many times."""
    left = iter([True] * times)

    def interrupted(items):
        answers = work(items)
        if next(left, False):
            raise KeyboardInterrupt
        return answers

    return interrupted


def test_when_the_leader_is_interrupted_those_it_led_for_are_asked_for_again():
    work, doubted = Work(), []
    committer = committer_of(interrupting(work, times=2), on_retry=doubted.append)
    work.hold()
    leader = Caller(committer, "leader")
    assert work.begun.wait(PATIENT)
    others = [Caller(committer, f"{nth}") for nth in range(3)]
    in_line(committer, 3)
    work.let_go()
    with pytest.raises(KeyboardInterrupt):
        leader.result()
    told = [_told(caller) for caller in others]
    assert sorted(told) == sorted(["KeyboardInterrupt", *doubted])
    assert len(doubted) == 2
    assert committer.request("after").block() == "AFTER"


def _told(caller):
    try:
        return caller.result()
    except KeyboardInterrupt:
        return "KeyboardInterrupt"


def test_a_caller_on_a_loop_that_an_interrupted_thread_led_for_is_asked_for_again():
    work = Work()
    committer = committer_of(interrupting(work, times=2))
    work.hold()
    first = Caller(committer, "first")
    assert work.begun.wait(PATIENT)
    leader = Caller(committer, "leader")
    in_line(committer, 1)

    async def ask():
        asked = asyncio.ensure_future(committer.request("on a loop").wait())
        await asyncio.sleep(0)
        in_line(committer, 2)
        work.let_go()
        return await asked

    assert asyncio.run(ask()) == "ON A LOOP"
    assert [_told(caller) for caller in (first, leader)] == ["KeyboardInterrupt"] * 2


def test_who_is_led_by_the_interrupted_again_and_again_is_told_that_nobody_knows():
    committer = committer_of(Work())
    waiter = committer.request("unlucky")
    while waiter.tries < TRIES:
        waiter = committer.retry(waiter)
    committer.commit_alone = lambda waiter: _answered(waiter, Interrupted("KeyboardInterrupt"))
    with pytest.raises(StoreUnavailable, match="may or may not have landed") as told:
        waiter.block()
    assert told.value.unsure is True


def _answered(waiter, answer):
    waiter.answer, waiter.answered = answer, True
    return True


def _error_of(caller):
    with pytest.raises(BaseException) as caught:
        caller.result()
    return caught.value


def test_a_cancelled_task_ends_only_when_the_truth_is_known():
    work = Work()

    async def cancel():
        committer = committer_of(work)
        work.hold()
        task = asyncio.ensure_future(committer.request("x").wait())
        await asyncio.to_thread(work.begun.wait, PATIENT)
        task.cancel()
        await asyncio.sleep(0)
        still_waiting = not task.done()
        work.let_go()
        with pytest.raises(asyncio.CancelledError):
            await task
        return still_waiting, committer.busy

    assert asyncio.run(cancel()) == (True, False)


def test_a_task_cancelled_twice_still_waits_for_the_truth():
    work = Work()

    async def cancel():
        committer = committer_of(work)
        work.hold()
        task = asyncio.ensure_future(committer.request("x").wait())
        await asyncio.to_thread(work.begun.wait, PATIENT)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        still_waiting = not task.done()
        work.let_go()
        await asyncio.wait([task])
        return still_waiting, task.cancelled()

    assert asyncio.run(cancel()) == (True, True)


def test_a_loop_that_is_closed_before_its_turn_leaves_the_committer_usable():
    work = Work()
    committer = committer_of(work)
    loop = asyncio.new_event_loop()
    task = loop.create_task(committer.request("lost").wait())
    loop.call_soon(loop.stop)
    loop.run_forever()
    task._log_destroy_pending = False
    loop.close()
    assert Caller(committer, "x").result() == "X"
    assert asyncio.run(asyncio.wait_for(committer.request("y").wait(), PATIENT)) == "Y"


def test_a_loop_that_is_closed_while_work_is_under_way_leaves_the_committer_usable():
    work = Work()
    committer = committer_of(work)
    work.hold()
    loop = asyncio.new_event_loop()
    task = loop.create_task(committer.request("lost").wait())
    for _ in range(3):
        loop.call_soon(loop.stop)
        loop.run_forever()
    assert work.begun.wait(PATIENT)
    task._log_destroy_pending = False
    loop.close()
    work.let_go()
    assert Caller(committer, "x").result() == "X"


def test_a_blocking_call_on_an_event_loops_own_thread_does_not_wait_for_that_loop():
    work = Work()

    async def mixed():
        committer = committer_of(work)
        task = asyncio.ensure_future(committer.request("awaited").wait())
        await asyncio.sleep(0)
        blocked = committer.request("blocking").block()
        return blocked, await task

    assert asyncio.run(asyncio.wait_for(mixed(), PATIENT)) == ("BLOCKING", "AWAITED")


def test_threads_and_several_event_loops_share_one_committer():
    work = Work()
    committer = committer_of(work)

    async def ask_some(name):
        return await asyncio.gather(*(committer.request(f"{name} {nth}").wait() for nth in range(10)))

    answers = {}

    def loop(name):
        answers[name] = asyncio.run(ask_some(name))

    threads = [threading.Thread(target=loop, args=(f"loop {nth}",)) for nth in range(3)]
    for thread in threads:
        thread.start()
    callers = [Caller(committer, f"thread {nth}") for nth in range(10)]
    assert [caller.result() for caller in callers] == [f"THREAD {nth}" for nth in range(10)]
    for thread in threads:
        thread.join(PATIENT)
    assert answers == {f"loop {n}": [f"LOOP {n} {nth}" for nth in range(10)] for n in range(3)}


def test_after_a_reset_nobody_waits_for_those_who_are_not_here():
    work = Work()
    committer = committer_of(work)
    committer._thread_leads = True  # as a forked child finds it: the leader stayed in the parent
    committer.reset()
    assert committer.request("child").block() == "CHILD"


def test_a_leader_interrupted_while_its_space_is_held_elsewhere_passes_the_lead_on():
    work, pauses = Work(), []

    def held_once(items):
        return [SPACE_BUSY] * len(items) if not pauses else work(items)

    def interrupted_pause(seconds):
        pauses.append(seconds)
        raise KeyboardInterrupt

    committer = committer_of(held_once, sleep=interrupted_pause)
    with pytest.raises(KeyboardInterrupt):
        committer.request("first").block()
    assert committer.request("second").block() == "SECOND"
    assert not committer.busy


def test_a_loop_that_takes_over_anothers_promise_does_not_keep_it_waiting():
    work = Work()
    committer = committer_of(work)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    promised = first.create_task(committer.request("first").wait())
    first.call_soon(first.stop)
    first.run_forever()  # it has promised a leader, and is held up before it can keep its word
    committer._leading_loop = first
    assert second.run_until_complete(committer.request("second").wait()) == "SECOND"
    assert first.run_until_complete(promised) == "FIRST"
    first.close()
    second.close()


def answered_together(committer, work, count):
    """So many threads have just had their answers from one group."""
    work.hold()
    callers = [Caller(committer, "first")]
    assert work.begun.wait(PATIENT)
    callers += [Caller(committer, f"{nth}") for nth in range(count)]
    in_line(committer, count)
    work.let_go()
    for caller in callers:
        caller.result()


def test_the_first_to_come_back_lets_those_in_who_were_answered_with_it(monkeypatch):
    work = Work()
    committer = committer_of(work)
    answered_together(committer, work, 3)
    coming = ["second", "third"]
    late = []

    def others_run(seconds):
        if coming:
            late.append(Caller(committer, coming.pop(0)))
            in_line(committer, 1 + len(late))

    monkeypatch.setattr("twiceproof.stores.group_commit.yield_gil", others_run)
    assert committer.request("first").block() == "FIRST"
    assert [caller.result() for caller in late] == ["SECOND", "THIRD"]
    assert work.groups[-1] == ["first", "second", "third"]


def test_a_caller_that_was_alone_gives_way_to_nobody(monkeypatch):
    committer, ways = committer_of(Work()), []
    committer.request("before").block()
    monkeypatch.setattr("twiceproof.stores.group_commit.yield_gil", ways.append)
    assert committer.request("alone").block() == "ALONE"
    assert ways == []


def test_company_that_does_not_come_back_is_not_waited_for(monkeypatch):
    work, ways = Work(), []
    committer = committer_of(work)
    answered_together(committer, work, 3)
    monkeypatch.setattr("twiceproof.stores.group_commit.yield_gil", ways.append)
    assert committer.request("alone").block() == "ALONE"
    assert committer.request("alone again").block() == "ALONE AGAIN"
    assert ways == [0]


def test_a_leader_interrupted_while_it_gives_way_leaves_the_committer_usable(monkeypatch):
    work = Work()
    committer = committer_of(work)
    answered_together(committer, work, 3)

    def interrupted(seconds):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("twiceproof.stores.group_commit.yield_gil", interrupted)
    with pytest.raises(KeyboardInterrupt):
        committer.request("first").block()
    assert not committer.busy
    assert committer.request("second").block() == "SECOND"


@pytest.mark.parametrize("answers", [["X"], [SPACE_BUSY, "X"]], ids=["at once", "held elsewhere first"])
def test_wherever_a_lone_caller_is_interrupted_the_committer_stays_usable(answers):
    """A signal's exception can hit before any line of it."""
    place = 0
    while True:
        left = list(answers)
        committer = committer_of(lambda items, left=left: [left.pop(0) if left else "X"] * len(items))
        if not _interrupted_before_line(place, committer.request("first").block):
            return
        assert not committer.busy, place
        assert committer.request("second").block() == "X", place
        assert not committer.busy, place
        place += 1


def _interrupted_before_line(place, call):
    """Whether the call was still in the committer's own code when its so-manieth line was reached.

    Not before a `with`: on the way out of one its line comes once more, where no signal is looked for.
    """
    left = itertools.count(-place)

    def trace(frame, event, _):
        name = frame.f_code.co_filename
        if not name.endswith(("stores/group_commit.py", "stores/waiting.py")):
            return None
        if event == "line" and "with self._mutex" not in linecache.getline(name, frame.f_lineno) and next(left) == 0:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("limit", [500, 2], ids=["one group", "a second group behind it"])
def test_wherever_a_leader_is_interrupted_nobody_it_leads_for_waits_for_ever(limit):
    place, interrupted = 0, True
    while interrupted:
        committer, callers, interrupted = _with_an_interrupted_leader(place, limit)
        for caller in callers:
            _told_the_truth(caller)
        assert committer.request("after").block() == "AFTER", place
        assert not committer.busy, place
        place += 1


def _with_an_interrupted_leader(place, limit):
    work = Work()
    committer = committer_of(work, limit=limit)
    work.hold()
    first = Caller(committer, "first")
    assert work.begun.wait(PATIENT)
    leader = InterruptedCaller(committer, "leader", place)
    before = _in_line_or_gone(committer, leader)
    others = [Caller(committer, name) for name in ("second", "third")]
    in_line(committer, before + 2)
    work.let_go()
    leader.join(PATIENT)
    assert not leader.is_alive()
    return committer, [first, *others], leader.interrupted


class InterruptedCaller(Caller):
    def __init__(self, committer, item, place):
        self.place, self.interrupted = place, False
        super().__init__(committer, item)

    def run(self):
        self.interrupted = _interrupted_before_line(self.place, self.committer.request(self.item).block)


def _in_line_or_gone(committer, caller):
    """How many stand in the queue then."""
    while caller.is_alive() and not committer._queue:
        pass
    return len(committer._queue)


def _told_the_truth(caller):
    assert caller.result() == caller.item.upper()


def test_a_caller_interrupted_twice_leaves_nobody_waiting_for_it_to_lead(monkeypatch):
    work = Work()
    committer = committer_of(work)
    work.hold()
    first = Caller(committer, "first")
    assert work.begun.wait(PATIENT)
    monkeypatch.setattr("twiceproof.stores.group_commit.PendingCommit.prepare_to_block", _close_a_gate_that_interrupts)
    with pytest.raises(KeyboardInterrupt):
        committer.request("hurried").block()
    monkeypatch.undo()
    second = Caller(committer, "second")
    in_line(committer, 1)
    work.let_go()
    assert [first.result(), second.result()] == ["FIRST", "SECOND"]
    assert work.groups == [["first"], ["second"]]
    assert not committer.busy


def _close_a_gate_that_interrupts(waiter):
    waiter.gate = InterruptingGate()


class InterruptingGate:
    def acquire(self):
        raise KeyboardInterrupt

    def locked(self):
        return False


def test_without_a_thread_callers_on_an_event_loop_are_answered_all_the_same(monkeypatch):
    work = Work()
    committer = committer_of(work)

    def exhausted(thread):
        raise RuntimeError("can't start new thread")

    async def scene():
        with monkeypatch.context() as patch:
            patch.setattr("threading.Thread.start", exhausted)
            first = await asyncio.wait_for(committer.request("first").wait(), PATIENT)
        return first, await asyncio.wait_for(committer.request("second").wait(), PATIENT)

    assert asyncio.run(scene()) == ("FIRST", "SECOND")
    assert work.threads == ["MainThread", "the thread"]
    assert committer.request("third").block() == "THIRD"


def test_a_note_on_ones_own_error_is_not_read_by_others():
    work = Work()
    committer = committer_of(work)

    def fail(items):
        work(items)
        raise StoreUnavailable("The store is away; come back later.", unsure=False)

    work.hold()
    committer._work = fail
    first = Caller(committer, "first")
    assert work.begun.wait(PATIENT)
    others = [Caller(committer, name) for name in ("second", "third")]
    in_line(committer, 2)
    work.let_go()
    errors = [_error_of(caller) for caller in (first, *others)]
    assert [(str(error), error.unsure) for error in errors] == [("The store is away; come back later.", False)] * 3
    errors[1].add_note("The work of the second was done.")
    assert not hasattr(errors[2], "__notes__")
