"""All subjects together: what a source's test class inherits."""

from __future__ import annotations

from .answers import Answers
from .arrays import Arrays
from .forged import Forged
from .ids import Ids
from .poison import Poisonous
from .replayed import Replayed
from .rotated import Rotated
from .sizes import Sizes

__all__ = ["SourceContract"]


class SourceContract(Forged, Replayed, Rotated, Ids, Arrays, Poisonous, Sizes, Answers):
    """What every source keeps."""
