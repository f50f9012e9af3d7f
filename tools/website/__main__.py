"""`python -m tools.website`: renews the generated pages, then builds the site into site/."""

from __future__ import annotations

from tools.reference.__main__ import main as renew

from .build import ROOT, build


def main() -> None:
    renew()
    print(build(ROOT / "site"), end="")


if __name__ == "__main__":
    main()
