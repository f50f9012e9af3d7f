"""Where an address lies: the part under which the application is mounted, and the rest, as it was sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

__all__ = ["place_of"]

UNTOUCHED = "/:@!$&'()*+,;=~-._"


def place_of(scope: Mapping[str, Any]) -> tuple[str, str]:
    """Both still percent-encoded. A server that leaves the first part out of its paths is believed, too."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw is not None else quote(scope["path"], safe=UNTOUCHED)
    root = scope.get("root_path", "").rstrip("/")
    if not root:
        return "", path
    segments, count = path.split("/"), root.count("/") + 1
    if len(segments) <= count or unquote("/".join(segments[:count])) != root:
        return quote(root, safe=UNTOUCHED), path
    return "/".join(segments[:count]), "/" + "/".join(segments[count:])
