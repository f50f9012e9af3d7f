"""The programme: which faults there are, and how one of them is tried."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable
from types import ModuleType

from tests.faults.finding import Enough, Finding
from tests.faults.trial import STORES, Trial

FAULTS = {
    "F1": "f01_worker_killed",
    "F2": "f02_killed_at_syscall",
    "F3": "f03_disk_full",
    "F4": "f04_postgres_killed",
    "F5": "f05_valkey_killed",
    "F6": "f06_mariadb_killed",
    "F7": "f07_network",
    "F8": "f08_clocks",
    "F9": "f09_zombies",
    "F10": "f10_power_cut",
    "F11": "f11_duplicate_storm",
    "F12": "f12_poison",
    "F13": "f13_pools",
    "F14": "f14_upgrades",
    "F15": "f15_sweep_races",
    "F16": "f16_everything_at_once",
    "F17": "f17_relay_killed",
    "F18": "f18_broker_killed",
    "F19": "f19_answers_lost",
    "F20": "f20_delivered_again",
    "F21": "f21_lost_effects",
    "F22": "f22_source_truncated",
    "F23": "f23_rebuild_killed",
    "F24": "f24_storm_elsewhere",
    "H1": "h1_simulated_histories",
    "H2": "h2_real_histories",
}
LONGEST_FIRST = [
    "F24",
    "F1",
    "F16",
    "F17",
    "F20",
    "F18",
    "F19",
    "F7",
    "F4",
    "F6",
    "F9",
    "H1",
    "H2",
    "F2",
    "F11",
    "F5",
    "F3",
    "F10",
    "F8",
    "F13",
    "F12",
    "F14",
    "F15",
    "F21",
    "F23",
    "F22",
]


def module(number: str) -> ModuleType:
    return importlib.import_module(f"tests.faults.catalogue.{FAULTS[number]}")


def try_fault(
    number: str,
    seed: int,
    share: float,
    stores: tuple[str, ...] = STORES,
    say: Callable[[str], None] = print,
    *,
    one_is_enough: bool = False,
) -> Finding:
    """Try a fault in this process."""
    fault = module(number)
    finding = Finding(number, fault.TITLE, seed, share, one_is_enough)
    began = time.monotonic()
    with contextlib.suppress(Enough), Trial(seed, share, stores, say) as trial:
        fault.run(trial, finding)
    finding.seconds = time.monotonic() - began
    return finding
