"""The contract of effects, tried on each block at its destination; and what the ledger keeps of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.effects.subjects import SUBJECTS, TOKEN
from twiceproof import App, Retry, TwiceproofError
from twiceproof.inbound.trace import trace
from twiceproof.prove.clocks import ManualClock
from twiceproof.prove.effect_contract import EffectContract, EffectTrial

ONLY_A_KEY = ("find_or_create", "upsert orders", "insert_once", "append")  # rows and lines have one column for it


class TestBlocks(EffectContract):
    secret = TOKEN

    @pytest.fixture(params=SUBJECTS, ids=str)
    def trial(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[EffectTrial]:
        with SUBJECTS[request.param](request, tmp_path, monkeypatch) as made:
            yield made

    @pytest.mark.slow
    @pytest.mark.parametrize("trouble", ["none", "its answer is lost", "refused", "unreachable"])
    def test_no_secret_is_in_the_ledger_or_a_log(
        self, trial: EffectTrial, trouble: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        effect = trial.unreachable if trouble == "unreachable" else trial.effect
        ledger = tmp_path / "ledger of secrets"
        ledger.mkdir()
        with caplog.at_level("DEBUG"), App(f"sqlite:///{ledger}/ledger.db", clock=ManualClock()) as app:
            act = app.effect(name="act", retry=Retry(attempts=1))(lambda order: effect)

            @app.flow(key="order:{order}", name="sync")
            def sync(order: int) -> None:
                act(order)

            {"its answer is lost": trial.lose_answer, "refused": trial.refuse}.get(trouble, lambda: None)()
            with contextlib.suppress(TwiceproofError):
                sync(17)
            shown = repr(app.history("sync/order:17"))
        kept = b"".join(path.read_bytes() for path in ledger.iterdir())
        assert b"order:17" in kept  # it is legible: nothing is compressed or sealed
        assert TOKEN.encode() not in kept
        assert TOKEN not in caplog.text + shown

    def test_what_a_flow_did_there_and_its_run_lead_to_each_other(self, trial: EffectTrial) -> None:
        with App("memory://") as app:
            act = app.effect(name="act", external="thing:{order}")(lambda order: trial.effect)

            @app.flow(key="order:{order}", name="sync")
            def sync(order: int) -> None:
                act(order)

            with app.correlate("trace-17"):
                sync(17)
            (link,) = app.ids("thing:17")
            assert (link.flow, link.key, link.step) == ("sync", "order:17", "act")
            assert app.ids("sync/order:17") == app.ids(link.run) == [link]
            if trial.carried is None:
                return  # a whole file has no place for a key
            carried = trial.carried()
            (effect_key,) = set(re.findall(r"tp_[0-9a-f]{32}", carried))
            assert "sync/order:17" in [one.name for one in trace([app.store], "default", effect_key)]
            assert "trace-17" in carried or trial.effect.name.startswith(ONLY_A_KEY)
