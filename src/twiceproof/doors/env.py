"""Secrets that are kept in the environment, and nowhere else."""

from __future__ import annotations

import os

from ..errors import Misuse

__all__ = ["Env", "env"]


class Env:
    """Read at each delivery: a secret is never kept, nor shown. One that is not set is believed by nobody."""

    def __init__(self, *names: str) -> None:
        if not names or not all(names):
            raise Misuse('env() needs the name of an environment variable: env("STRIPE_SECRET")')
        self.names = names

    def __call__(self) -> list[str]:
        # Without the newline that a file or a form left behind it: a signature would fit by no letter.
        return [value for name in self.names if (value := os.environ.get(name, "").strip())]

    def __repr__(self) -> str:
        return f"env({', '.join(map(repr, self.names))})"


def env(*names: str) -> Env:
    """`secret=env("STRIPE_SECRET")`; while secrets are rotated, `env("STRIPE_SECRET", "STRIPE_SECRET_OLD")`."""
    return Env(*names)
