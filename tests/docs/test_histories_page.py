"""The page about histories shows what the checker draws, without an import that a reader does not have."""

from tests.docs.blocks import ROOT, blocks
from tests.faults.linearizability import Operation, check
from tests.faults.linearizability.checker import draw_violation
from tests.faults.linearizability.model import Complete, Ended, Held, Take

PAGE = ROOT / "docs/why/histories.md"


def taken(caller, fence, invoked):
    """A take that won, with a lease of 10 s."""
    take = Take(caller, lease=10, repeat="safe")
    return Operation(caller, "order:17", take, Held(fence=fence, attempt=fence), invoked=invoked, returned=invoked + 2)


def test_the_drawing_on_the_page_is_what_the_checker_draws():
    completed = Complete(fence=1, result="paid")
    late = Operation("anna", "order:17", completed, Ended(fence=3), invoked=18, returned=19)
    (drawn,) = [block.text for block in blocks(PAGE) if block.language == "text"]
    assert drawn == draw_violation(check([taken("anna", 1, 0), taken("ben", 2, 15), late])) + "\n"
