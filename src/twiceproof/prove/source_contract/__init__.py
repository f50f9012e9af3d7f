"""The contract that every webhook source keeps, as tests. Subclass it, give it your source, and run pytest:

    from twiceproof.prove.source_contract import SourceContract

    class TestMySender(SourceContract):
        def make_source(self):
            return MySender()

A sender that signs what a body says and not its bytes (a form's fields) sets `exact = False`; one that signs with a
private key, so that nothing secret is compared, sets `compares = False`. Each of them changes what a test demands, and
leaves none out.
"""

import pytest

# Before the modules are imported: a failing assertion is to say what it found.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in ("answers", "arrays", "case", "forged", "ids", "poison", "replayed", "rotated", "sizes")
    )
)

from .contract import SourceContract  # noqa: E402

__all__ = ["SourceContract"]
