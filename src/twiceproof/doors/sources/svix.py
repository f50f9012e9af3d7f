"""Svix: Standard Webhooks under its older header names."""

from __future__ import annotations

from .standard_webhooks import StandardWebhooks

__all__ = ["Svix"]


class Svix(StandardWebhooks):
    name = "svix"
    prefix = "svix"
    horizon = 99_305.0  # 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 10 h
