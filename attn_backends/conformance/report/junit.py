"""`junit.xml`: the run for continuous integration. One test case per item; a bad outcome is a failure, CRASH and TIMEOUT errors.

`skipped` is said of NOT_RUN alone, with its reason: a refusal is a result, and a good one.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET  # it is only written

from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.record import RunRecord
from attn_backends.conformance.report.headline import headline, volume_line
from attn_backends.conformance.report.plain import clean, first_line
from attn_backends.conformance.report.replay import replay_command
from attn_backends.conformance.report.verdict import worst_first

BROKEN = (Outcome.CRASH, Outcome.TIMEOUT)


def render_junit(record: RunRecord) -> str:
    """The document as text."""
    counts = record.counts()
    notes = record.errors
    broken = sum(counts[outcome] for outcome in BROKEN)
    failed = sum(count for outcome, count in counts.items() if outcome.bad) - broken
    suite = ET.Element(
        "testsuite", name=clean(f"attn-conformance.{record.backend}"), tests=str(len(record.results) + len(notes)),
        failures=str(failed + len(notes)), errors=str(broken), skipped=str(counts[Outcome.NOT_RUN]),
        time=f"{record.seconds:.3f}", timestamp=clean(record.started),
    )  # fmt: skip
    _properties(suite, record)
    for result in worst_first(record.results):
        _case(suite, record, result)
    for number, note in enumerate(notes, 1):
        case = ET.SubElement(
            suite, "testcase", classname=clean(f"{record.backend}.notes"), name=f"note {number}", time="0"
        )
        ET.SubElement(case, "failure", type="error", message=first_line(note)).text = clean(note)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _properties(suite: ET.Element, record: RunRecord) -> None:
    said = {"headline": headline(record), "volume": volume_line(record), "digest": record.digest, "suite": record.suite}
    holder = ET.SubElement(suite, "properties")
    for name, value in said.items():
        ET.SubElement(holder, "property", name=name, value=clean(value))


def _case(suite: ET.Element, record: RunRecord, result: Result) -> None:
    check, _, case = result.id.partition("/")
    made = ET.SubElement(
        suite, "testcase", classname=clean(f"{record.backend}.{check}"), name=clean(case or check), time=f"{result.seconds:.4f}"
    )  # fmt: skip
    if result.outcome is Outcome.NOT_RUN:
        ET.SubElement(made, "skipped", message=first_line(result.message))
    elif result.outcome.bad:
        kind = "error" if result.outcome in BROKEN else "failure"
        said = ET.SubElement(
            made, kind, type=str(result.outcome), message=first_line(f"{result.outcome}: {result.message}")
        )
        clauses = ", ".join(result.clauses)
        said.text = clean(f"{result.message}\nclauses: {clauses}\nreplay: {replay_command(record, result.id)}")
    else:
        ET.SubElement(made, "system-out").text = clean(f"{result.outcome} {first_line(result.message)}".strip())
