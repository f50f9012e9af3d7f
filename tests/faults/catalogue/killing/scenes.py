"""Every scene there is."""

from __future__ import annotations

from tests.faults.catalogue.killing.claim_scenes import CLAIM_SCENES
from tests.faults.catalogue.killing.keeping_scenes import KEEPING_SCENES
from tests.faults.catalogue.killing.many_scenes import MANY_SCENES
from tests.faults.catalogue.killing.run_scenes import RUN_SCENES
from tests.faults.catalogue.killing.trigger_scenes import TRIGGER_SCENES
from tests.faults.catalogue.killing.undo_scenes import UNDO_SCENES
from tests.faults.catalogue.killing.wait_scenes import WAIT_SCENES

__all__ = ["SCENES"]

SCENES = (
    *CLAIM_SCENES,
    *RUN_SCENES,
    *UNDO_SCENES,
    *MANY_SCENES,
    *WAIT_SCENES,
    *TRIGGER_SCENES,
    *KEEPING_SCENES,
)
