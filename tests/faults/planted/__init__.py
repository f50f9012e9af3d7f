"""Bugs planted into the product, to see whether the faults catch them. Each is one patch, made in a running process.

A process whose environment names one plants it before it does anything else; forks inherit it.
"""

from __future__ import annotations

import importlib
import os

ORDER = "TWICEPROOF_TESTS_PLANT"


def ordered(name: str) -> dict[str, str]:
    """For the environment of a process that shall have the bug."""
    return {ORDER: name}


def is_ordered() -> bool:
    return bool(os.environ.get(ORDER))


def plant_ordered() -> None:
    """Plant what this process's environment asks for. Every process that a fault starts calls this first."""
    if name := os.environ.get(ORDER):
        catalogue = importlib.import_module("tests.faults.planted.catalogue")
        catalogue.PLANTS[name].into()
