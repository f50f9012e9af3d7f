"""Keys and fingerprints: what makes two requests the same intent, and the same request."""

from .canonical import canonical, digest
from .duration import lifetime, seconds
from .fingerprint import body_hash, fingerprint
from .key import LONGEST_KEY, Template, validate_key
from .maker import KeyMaker, composite, stage, windowed
from .stability import KeyWatch, Suspect, UnstableKeyDetector, suspects, warn_unstable

__all__ = [
    "LONGEST_KEY",
    "KeyMaker",
    "KeyWatch",
    "Suspect",
    "Template",
    "UnstableKeyDetector",
    "body_hash",
    "canonical",
    "composite",
    "digest",
    "fingerprint",
    "lifetime",
    "seconds",
    "stage",
    "suspects",
    "validate_key",
    "warn_unstable",
    "windowed",
]
