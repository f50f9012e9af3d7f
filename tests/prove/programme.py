"""The programme: which faults there are, and how one of them is tried."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from types import ModuleType

from tests.prove.finding import Finding
from tests.prove.trial import STORES, Trial

FAULTS = {
    "F16": "f16_everything_at_once",
}


def module(number: str) -> ModuleType:
    return importlib.import_module(f"tests.prove.faults.{FAULTS[number]}")


def try_fault(
    number: str, seed: int, share: float, stores: tuple[str, ...] = STORES, say: Callable[[str], None] = print
) -> Finding:
    """In this process. Whatever it raises is a finding too: a programme that breaks proves nothing."""
    fault = module(number)
    finding = Finding(number, fault.TITLE, seed, share)
    began = time.monotonic()
    with Trial(seed, share, stores, say) as trial:
        fault.run(trial, finding)
    finding.seconds = time.monotonic() - began
    return finding
