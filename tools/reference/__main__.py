"""`python -m tools.reference`: writes the generated parts of the pages anew, and says which have changed."""

from __future__ import annotations

from .block import renewed
from .diagrams import DIAGRAMS
from .drawing import draw
from .makers import DOCS, MAKERS, pages

PICTURES = DOCS / "pictures"


def main() -> None:
    made = {PICTURES / f"{name}.svg": draw(diagram) for name, diagram in DIAGRAMS.items()}
    made |= {page: renewed(page, MAKERS) for page in pages()}
    PICTURES.mkdir(exist_ok=True)
    for path, text in made.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"renewed {path.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
