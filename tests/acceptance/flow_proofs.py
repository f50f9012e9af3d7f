"""`python -m tests.acceptance.flow_proofs FILE`: runs all tests of a flow file and prints the evidence.

A process of its own: every scenario is a fork, and those of a process with thousands of tests take ten times as long.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from twiceproof.declared.connections import Connections
from twiceproof.declared.releases import FlowProof
from twiceproof.prove.flow_tests import flow_proof, prove_flow_tests, read_tested

__all__ = ["proved_apart"]

ROOT = Path(__file__).parents[2]


def proved_apart(file: Path) -> FlowProof:
    command = [sys.executable, "-m", "tests.acceptance.flow_proofs", str(file.resolve())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_800)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=FlowProof)


def proved(file: Path) -> FlowProof:
    """Run all tests of a file, with a second kill in every recovery."""
    tested = read_tested(file)
    results = [*prove_flow_tests(tested, Connections.read(file.parent / "connections.yaml"), depth=2)]
    assert results and all(one.good for one in results), [(one.test, one.unmet, one.error) for one in results]
    assert all(one.report is not None and one.report.complete and not one.unobserved for one in results)
    return flow_proof(tested, results, tenant="default", depth=2, by="ci", host="here")


if __name__ == "__main__":
    print(msgspec.json.encode(proved(Path(sys.argv[1]))).decode())
