"""Secrets that are read when they are needed and never shown: `env("STRIPE_SECRET")`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import Misuse

__all__ = ["Env", "Secret", "SecretFile", "env", "secrets_of"]


class Env:
    """Names of variables, not their values: it may be printed, copied and logged."""

    __slots__ = ("_environment", "names")

    def __init__(self, names: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self.names = names
        self._environment = environment

    def __call__(self) -> tuple[str, ...]:
        """Return all values that are set: while a secret is rotated, the new one and the old one."""
        # Without the newline that a file or a form may have added: no signature would match.
        return tuple(value for name in self.names if (value := self._environment.get(name, "").strip()))

    def values(self) -> tuple[str, ...]:
        """Return the same, or raise Misuse if none is set. The one to sign or log in with comes first."""
        found = self()
        if not found:
            name = " or ".join(self.names)
            raise Misuse(f"{name} is not set; put the secret into that environment variable.", name=name)
        return found

    def __repr__(self) -> str:
        return f"env({', '.join(map(repr, self.names))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Env) and other.names == self.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __reduce__(self) -> tuple[object, ...]:
        return env, self.names


class SecretFile(Env):
    """A secret in a file of its own, as containers are given them: read each time it is needed, like a variable."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        super().__init__((str(path),), {})
        self._path = path

    def __call__(self) -> tuple[str, ...]:
        try:
            text = self._path.read_text("utf-8").strip()
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise Misuse(f"{self._path} cannot be read ({why}); put the secret into that file.") from None
        return (text,) if text else ()

    def values(self) -> tuple[str, ...]:
        found = self()
        if not found:
            raise Misuse(f"{self._path} is empty; put the secret into that file.")
        return found

    def __repr__(self) -> str:
        return f"SecretFile({str(self._path)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return SecretFile, (self._path,)


Secret = str | Env | Sequence[str | Env]


def env(*names: str) -> Env:
    """Return a secret that is read from the environment each time it is needed: `env("STRIPE_SECRET")`.

    `names` are two while it is rotated: `env("STRIPE_SECRET", "STRIPE_SECRET_OLD")`.
    """
    if not names or not all(isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in names):
        # The value is not repeated: it may be the secret itself, which must not get into a log.
        raise Misuse('env() takes the name of an environment variable, like env("STRIPE_SECRET"), not a value.')
    return Env(names, os.environ)


def secrets_of(secret: Secret) -> tuple[str, ...]:
    """Return every text that is valid now, the one to sign with first."""
    if isinstance(secret, str):
        return (secret,) if secret else ()
    if isinstance(secret, Env):
        return secret.values()
    return tuple(text for one in secret for text in secrets_of(one))
