"""`python -m tools.reference`: writes the generated parts of the pages anew, and says which have changed."""

from __future__ import annotations

from .block import renewed
from .makers import DOCS, MAKERS, pages


def main() -> None:
    for page in pages():
        text = renewed(page, MAKERS)
        if text != page.read_text("utf-8"):
            page.write_text(text, "utf-8")
            print(f"renewed docs/{page.relative_to(DOCS)}")


if __name__ == "__main__":
    main()
