"""Groups of batches on SQLite go through few statements, and are answered as if each had come alone."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from twiceproof.records import Address, Batch, Check, Conflict, Insert, Remove, Replace, Written
from twiceproof.stores.memory import MemoryEngine
from twiceproof.stores.sqlite.engine import SqliteEngine

KEYS = ("self", "one", "two")


def places(count=6):
    return [Address(f"space-{n}", "claim", key) for n in range(count) for key in KEYS]


@st.composite
def batch(draw):
    """Writes to one space, each with a condition that may hold or not: what was put is known by its turn."""
    space = draw(st.integers(0, 5))
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True))
    return [(Address(f"space-{space}", "claim", key), *draw(condition)) for key in keys]


condition = st.tuples(
    st.sampled_from(("insert", "insert", "replace", "remove", "check", "absent")),
    st.sampled_from(("fence", "fence", "version")),
    st.sampled_from((True, True, True, False)),  # whether the condition is the right one
)
groups = st.lists(st.lists(batch(), min_size=1, max_size=8), min_size=1, max_size=6)


def write_of(engine, at, act, by, right):
    found = engine.fetch([at])[0].record
    known = {"fence": 987_654_321} if by == "fence" else {"version": "987654321"}
    if right and found is not None and (by == "version" or found.fence):
        known = {"fence": found.fence} if by == "fence" else {"version": found.version}
    if act == "insert":
        return Insert(at, "body", "held", draw=True)
    if act == "replace":
        return Replace(at, "again", "done", draw=True, **known)
    if act == "remove":
        return Remove(at, **known)
    return Check(at, **known) if act == "check" else Check(at, absent=True)


def batches_for(engine, group):
    return [Batch(tuple(write_of(engine, *write) for write in writes), f"nonce-{n}") for n, writes in enumerate(group)]


def gist(answer):
    return (type(answer), answer.at, answer.found is None) if isinstance(answer, Conflict) else type(answer)


@settings(max_examples=60, deadline=None)
@given(groups)
def test_a_group_is_answered_and_kept_as_the_model_does(sequence):
    with tempfile.TemporaryDirectory() as directory:
        engine, model = SqliteEngine(Path(directory) / "a.db"), MemoryEngine()
        try:
            for group in sequence:
                answers = engine.commit(batches_for(engine, group))
                wanted = model.commit(batches_for(model, group))
                assert [gist(answer) for answer in answers] == [gist(answer) for answer in wanted]
            assert _kept(engine) == _kept(model)
        finally:
            engine.close()


def _kept(engine):
    records = [found.record for found in engine.fetch(places())]
    return [record and (record.at, record.body, record.state, record.nonce) for record in records]


def steps(spaces, fence):
    return [
        Batch(
            (Check(Address(space, "claim", "self"), fence=fence(space)), Insert(Address(space, "step", "pay"), "")),
            f"step-{space}",
        )
        for space in spaces
    ]


def test_of_steps_that_land_together_only_those_whose_claim_was_lost_are_refused(tmp_path):
    engine = SqliteEngine(tmp_path / "a.db")
    spaces = [f"run-{n}" for n in range(40)]
    takes = engine.commit([Batch((Insert(Address(s, "claim", "self"), "", draw=True),), s) for s in spaces])
    fences = dict(zip(spaces, [take.fence for take in takes], strict=True))
    answers = engine.commit(steps(spaces, lambda space: fences[space] + (space == "run-7")))
    refused = [space for space, answer in zip(spaces, answers, strict=True) if isinstance(answer, Conflict)]
    landed = [engine.fetch([Address(space, "step", "pay")])[0].record is not None for space in spaces]
    engine.close()
    assert refused == ["run-7"]
    assert landed == [space != "run-7" for space in spaces]


def test_steps_that_all_fit_land_in_a_handful_of_statements(tmp_path):
    engine = SqliteEngine(tmp_path / "a.db")
    spaces = [f"run-{n}" for n in range(64)]
    takes = engine.commit([Batch((Insert(Address(s, "claim", "self"), "", draw=True),), s) for s in spaces])
    seen = []
    engine._writer.set_trace_callback(seen.append)
    fences = dict(zip(spaces, [take.fence for take in takes], strict=True))
    answers = engine.commit(steps(spaces, fences.__getitem__))
    engine._writer.set_trace_callback(None)
    engine.close()
    assert all(isinstance(answer, Written) for answer in answers)
    assert len(seen) <= 6, [statement[:60] for statement in seen]
