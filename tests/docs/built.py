"""Reads a built site: the anchors of each page, where its links lead, and what it loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "video": "src"}


@dataclass
class Page(HTMLParser):
    """One page. `links` are what a reader may follow, `loads` what a browser fetches by itself."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given:
            self.loads.append(given["href"])
        elif tag in LOADED and LOADED[tag] in given:
            self.loads.append(given[LOADED[tag]])

    def __hash__(self) -> int:
        return hash(self.path)


def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def is_outside(link: str) -> bool:
    return bool(urlsplit(link).netloc or urlsplit(link).scheme)


def broken(site: Path) -> list[str]:
    """Links and loads within the site that lead nowhere."""
    found = pages(site)
    return [
        f"{page.path.relative_to(site)}: {link}"
        for page in found.values()
        for link in [*page.links, *page.loads]
        if not is_outside(link) and not _leads_somewhere(site, page, link, found)
    ]


def outside_loads(site: Path) -> list[str]:
    return [
        f"{page.path.relative_to(site)}: {load}"
        for page in pages(site).values()
        for load in page.loads
        if is_outside(load)
    ]


def _leads_somewhere(site: Path, page: Page, link: str, found: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    path = unquote(parts.path)
    to = site / path.lstrip("/") if path.startswith("/") else page.path.parent / path
    to = (page.path if not path else to).resolve()
    to = to / "index.html" if to.is_dir() else to
    if not to.is_file():
        return False
    return not parts.fragment or to not in found or unquote(parts.fragment) in found[to].anchors
