"""The report as JUnit XML, for whatever shows test results."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, tostring

from .report import Report

__all__ = ["junit"]


def junit(report: Report) -> str:
    suite = Element(
        "testsuite",
        name=f"twiceproof prove {report.flow}",
        tests=str(len(report.verdicts)),
        failures=str(len(report.bad)),
    )
    for verdict in report.verdicts:
        case = SubElement(suite, "testcase", classname=report.flow, name=verdict.scene)
        if not verdict.good:
            failure = SubElement(case, "failure", type=verdict.word, message=f"{verdict.says}: {verdict.detail}")
            failure.text = f"more than once: {verdict.extra}, missing: {verdict.missing}"
    return tostring(suite, encoding="unicode")
