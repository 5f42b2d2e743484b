"""Writes the verdicts on schema files as text, JSON, JUnit XML or GitHub annotations."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from xml.etree import ElementTree

from changelog.connectors.schema_files.verdicts import SchemaFinding, Verdict, VerdictState
from changelog.connectors.terminal import safe

_GITHUB = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_GITHUB_PROPERTY = {**_GITHUB, **str.maketrans({":": "%3A", ",": "%2C"})}

_NOT_IN_XML = {0xFFFE: r"\ufffe", 0xFFFF: r"\uffff"}
"""Replacements for two characters that XML 1.0 forbids (section 2.2, Char). The others are escaped before these two."""

ORDER: tuple[VerdictState, ...] = ("invalid", "incompatible", "removed", "compatible", "new", "unchanged")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The verdicts of one run of `schemas check`.

    `against` says with what the files were compared, and `notes` what could not be compared.
    """

    against: str
    verdicts: Sequence[Verdict]
    notes: Sequence[str] = ()

    @property
    def summary(self) -> str:
        """One line that counts the verdicts by state. Every format but JSON ends with it."""
        counts = Counter(verdict.state for verdict in self.verdicts)
        parts = ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state])
        total = len(self.verdicts)
        return f"{total} schema{'' if total == 1 else 's'} against {self.against}: {parts or 'nothing to compare'}"


def text(report: CheckReport) -> str:
    """Returns one line for each finding, in the form that compilers use.

    The findings of a file refer to earlier versions by their labels. Below them, a line for each of these labels says
    where the version was read.
    """
    return "\n".join(map(_printable, [*_lines(report), report.summary]))


def _lines(report: CheckReport) -> Iterator[str]:
    for verdict in report.verdicts:
        for finding in verdict.findings:
            yield f"{verdict.file}: ERROR {finding.rule} {finding.path}: {_sentence(finding)}"
        labels = {label for finding in verdict.findings for label in finding.against}
        for label, where in verdict.versions:
            if label in labels:
                yield f"{verdict.file}: note: {label} is {where}"
    for note in report.notes:
        yield f"note: {note}"


def json_(report: CheckReport) -> str:
    """Returns one JSON object with `against`, `clean` (no verdict has a finding), `verdicts` with their findings, and
    `notes`.
    """
    clean = not any(verdict.findings for verdict in report.verdicts)
    verdicts = [
        {**asdict(verdict), "versions": [{"label": label, "where": where} for label, where in verdict.versions]}
        for verdict in report.verdicts
    ]
    return json.dumps({"against": report.against, "clean": clean, "verdicts": verdicts, "notes": list(report.notes)})


def junit(report: CheckReport) -> str:
    """Returns JUnit XML with one test case for each file."""
    cases = report.verdicts
    failed = sum(bool(verdict.findings) and verdict.state != "invalid" for verdict in cases)
    invalid = sum(verdict.state == "invalid" for verdict in cases)
    counts = {"tests": str(len(cases)), "failures": str(failed), "errors": str(invalid), "skipped": "0"}
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "changelog schemas check", **counts})
    for verdict in cases:
        names = {"classname": _printable(verdict.subject), "name": _printable(verdict.file)}
        case = ElementTree.SubElement(suite, "testcase", names)
        if verdict.findings:
            first = verdict.findings[0]
            about = {"type": first.rule, "message": _printable(f"{first.rule} {first.path}: {first.text}")}
            fault = ElementTree.SubElement(case, "error" if verdict.state == "invalid" else "failure", about)
            fault.text = "\n".join(
                _printable(f"{finding.rule} {finding.path} (line {finding.line}): {_sentence(finding)}")
                for finding in verdict.findings
            )
    ElementTree.SubElement(suite, "system-out").text = _printable("\n".join([*report.notes, report.summary]))
    ElementTree.indent(root)
    return str(ElementTree.tostring(root, encoding="us-ascii", xml_declaration=True), "us-ascii")


def github(report: CheckReport) -> str:
    """Returns one GitHub annotation for each finding, at its line, and then the summary, which goes into the log."""
    return "\n".join(map(_printable, [*_annotations(report), report.summary]))


def _annotations(report: CheckReport) -> Iterator[str]:
    for verdict in report.verdicts:
        for finding in verdict.findings:
            values = {"file": verdict.file, "line": str(finding.line), "title": f"{finding.rule} {finding.path}"}
            properties = ",".join(f"{name}={value.translate(_GITHUB_PROPERTY)}" for name, value in values.items())
            yield f"::error {properties}::{_sentence(finding).translate(_GITHUB)}"
    for note in report.notes:
        yield f"::notice::{note.translate(_GITHUB)}"


FORMATS: Mapping[str, Callable[[CheckReport], str]] = {"text": text, "json": json_, "junit": junit, "github": github}


def _sentence(finding: SchemaFinding) -> str:
    return f"{finding.text}; {finding.hint}" if finding.hint else finding.text


def _printable(line: str) -> str:
    """Returns the line, with escapes for characters that act on a terminal, that XML 1.0 forbids, or that UTF-8 cannot
    encode. The name of a file has such characters if its bytes are not UTF-8.
    """
    return safe(line).encode("utf-8", "backslashreplace").decode().translate(_NOT_IN_XML)
