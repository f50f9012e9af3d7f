"""Builds the site in a directory of its own: nothing is left beside the pages but what was asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from .nav import without

__all__ = ["CONFIG", "ROOT", "build"]

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "mkdocs.yml"


def build(into: Path, docs: Path = ROOT / "docs") -> str:
    """Every warning is an error. The answer is what zensical said."""
    with TemporaryDirectory(prefix="twiceproof-site-") as folder:
        place = Path(folder)
        shutil.copytree(docs, place / "docs")
        (place / "mkdocs.yml").write_text(_config(docs), "utf-8")
        said = _zensical(place)
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(place / "site", into)
    return said


def _config(docs: Path) -> str:
    config = yaml.safe_load(CONFIG.read_text("utf-8"))
    config["nav"] = without(config["nav"], lambda page: (docs / page).exists())
    return str(yaml.safe_dump(config, sort_keys=False))


def _zensical(place: Path) -> str:
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"The site cannot be built:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr
