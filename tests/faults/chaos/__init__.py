"""Flows under every fault at once: workers killed, PostgreSQL killed, answers lost. Effects are counted outside.

    python -m tests.faults.chaos --runs 25000 --seed 7

Not part of the package: the short one is in `tests/acceptance/test_chaos.py`, the long one is `make prove`.
"""
