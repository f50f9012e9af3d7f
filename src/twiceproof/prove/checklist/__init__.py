"""The design checklist, read off a user's own flows without running them."""

from .checklist import check_app
from .finding import Finding

__all__ = ["Finding", "check_app"]
