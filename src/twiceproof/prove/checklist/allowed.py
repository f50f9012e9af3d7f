"""What the author has thought about: `# twiceproof: allow missing-undo` on the line, or on the one above it."""

from __future__ import annotations

import linecache
import re

from .finding import Finding

__all__ = ["is_allowed"]

_WORD = re.compile(r"#\s*twiceproof:\s*allow\s+([a-z, -]+)")


def is_allowed(finding: Finding) -> bool:
    lines = (linecache.getline(finding.file, number) for number in (finding.line, finding.line - 1) if number > 0)
    return any(finding.rule in re.split(r"[\s,]+", found[1]) for line in lines if (found := _WORD.search(line)))
