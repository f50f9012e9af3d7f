"""The contract that every effect fulfils, as tests. Subclass it, describe a trial of your effect, and run pytest:

    from twiceproof.prove.effect_contract import EffectContract, EffectTrial

    class TestMyEffect(EffectContract):
        def make_trial(self):
            ...                         # a fresh destination, where nothing has happened
            return EffectTrial(MyEffect(…), state=…, count=…, lose_answer=…, refuse=…, unreachable=MyEffect(…))

An effect whose destination cannot tell two attempts at once apart says `concurrent=False`, and one that leaves its key
nowhere leaves out `carried=`: these tests are skipped. One that is `never` repeated makes none of these promises.
"""

from __future__ import annotations

import pytest

# Before the modules are imported, so that a failing assertion shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in ("case", "promises")))

from .case import KEY, EffectTrial  # noqa: E402
from .promises import EffectContract  # noqa: E402

__all__ = ["KEY", "EffectContract", "EffectTrial"]
