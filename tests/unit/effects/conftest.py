"""The stage of flows, for effects that a flow performs."""

from tests.unit.flows.conftest import stage

__all__ = ["stage"]
