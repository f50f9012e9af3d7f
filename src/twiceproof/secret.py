"""Secrets that are read when they are needed and never shown: `env("STRIPE_SECRET")`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from .errors import Misuse

__all__ = ["Env", "Secret", "env", "secrets_of"]


class Env:
    """The name of a variable, not its value: it may be printed, copied and logged."""

    __slots__ = ("_environment", "name")

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self._environment = environment

    def values(self) -> tuple[str, ...]:
        """All that are valid now: the new secret and the old one, while they are rotated."""
        found = tuple(filter(None, re.split(r"[\s,]+", self._environment.get(self.name, ""))))
        if not found:
            raise Misuse(f"{self.name} is not set; put the secret into that environment variable.", name=self.name)
        return found

    __call__ = values

    def value(self) -> str:
        """The first one: what is signed or logged in with."""
        return self.values()[0]

    def __repr__(self) -> str:
        return f"env({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Env) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[object, ...]:
        return env, (self.name,)


Secret = str | Env | Sequence[str | Env]


def env(name: str) -> Env:
    """A secret in the environment, read each time it is needed. Several, for rotation: apart by space or comma."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        # Not repeated: who passes the secret itself here must not find it in a log.
        raise Misuse('env() takes the name of an environment variable, like env("STRIPE_SECRET"), not a value.')
    return Env(name, os.environ)


def secrets_of(secret: Secret) -> tuple[str, ...]:
    """Every text that is valid now, the one to sign with first."""
    if isinstance(secret, str):
        return (secret,) if secret else ()
    if isinstance(secret, Env):
        return secret.values()
    return tuple(text for one in secret for text in secrets_of(one))
