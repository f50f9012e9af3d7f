"""LintFindings: what a check of a file reports, each at its place in the file."""

from __future__ import annotations

from .expression import ExpressionError, NameUse
from .names import FieldText
from .nodes import Document, Level, LintProblem, Path, Place

__all__ = ["LintFindings"]


class LintFindings:
    """Collects what is wrong with one file."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[LintProblem] = []

    def report(
        self,
        rule: str,
        path: Path,
        found: str,
        instead: str = "",
        *,
        column: int = 0,
        within: str = "",
        level: Level = "error",
    ) -> None:
        """Report a problem at a place or, with `column`, at that offset in the value there. `within` is the value's
        text: in a block of several lines, lines are counted from its `|`.
        """
        document = self.document
        place = document.places.get((*path, ""), document.place(path)) if column else document.place(path)
        if "\n" in within:
            place = Place(place.line + 1 + within[: column - 1].count("\n"), 1)
        else:
            place = Place(place.line, place.column + max(column - 1, 0))
        self.problems.append(LintProblem(rule, place, found, instead, level))

    def report_in(self, field: FieldText, column: int, rule: str, found: str, instead: str = "") -> None:
        """Report a problem at an offset in an expression or a text."""
        self.report(rule, field.path, found, instead, column=field.offset + column + 1, within=field.source)

    def parsed(self, field: FieldText) -> tuple[NameUse, ...]:
        """Return the names that a field reads. A field that cannot be parsed is reported, and returns none."""
        try:
            return field.names()
        except ExpressionError as error:
            self.report_in(field, error.column, field.kind, str(error))
            return ()

    def line(self, path: Path) -> int:
        return self.document.place(path).line
