"""Judges schema files: whether readers would break because a schema differs from its earlier versions.

Old readers, who have an earlier version, read new data; new readers read data of earlier versions. A mode (`Mode`) says
which of these readers must not break.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from changelog.connectors.schema_files.files import Contract
from changelog.connectors.schema_files.history import Earlier, Past
from changelog.schemas.compatibility import Mode, Problem, problems

COMPATIBILITY = "compatibility"
"""The property by which a schema file chooses a compatibility mode."""

DEFAULT_MODE = Mode.FULL_TRANSITIVE

VerdictState = Literal["new", "unchanged", "compatible", "incompatible", "removed", "invalid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFinding:
    """One reason why a file must be changed; `text` gives the reason.

    `path` is a pointer into the schema, and `line` is the line in the file to which `path` leads. `against` has the
    labels of the earlier versions with which the file is incompatible. `breaks` says who would break. `strict` is set
    if Avro's own rules allow the change and only this program's stricter rules forbid it.
    """

    rule: str
    path: str
    line: int
    text: str
    hint: str = ""
    breaks: str = ""
    against: tuple[str, ...] = ()
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on one file.

    `versions` has the earlier versions with which the file was compared, as pairs of a label and a text that says where
    the version was read.
    """

    file: str
    subject: str
    state: VerdictState
    mode: Mode | None = None
    versions: tuple[tuple[str, str], ...] = ()
    findings: tuple[SchemaFinding, ...] = ()


def verdicts(contracts: Sequence[Contract], earlier: Earlier, mode: Mode) -> list[Verdict]:
    """Returns one verdict for each file, and then one for each removed subject.

    `mode` applies to the files that choose no mode themselves.
    """
    verdicts = [judge(contract, earlier.pasts.get(contract.file), mode) for contract in contracts]
    return [*verdicts, *(removed(contract, mode) for contract in earlier.removed)]


def judge(contract: Contract, past: Past | None, mode: Mode) -> Verdict:
    """Returns the verdict on a file. A valid file without earlier versions is new."""
    if contract.rule:
        return _invalid(contract, contract.rule, contract.path, contract.trouble)
    try:
        mode = _mode(contract, mode)
    except ValueError:
        return _invalid(contract, "UNKNOWN_MODE", "/", f"has a {COMPATIBILITY} that is not one of {', '.join(Mode)}")
    if past is None:
        return Verdict(file=contract.file, subject=contract.subject, state="new", mode=mode)
    problems_found = problems(past.schema, [(version.label, version.schema) for version in past.versions], mode)
    findings = tuple(_grouped(contract, past, problems_found, mode))
    state: VerdictState = "compatible"
    if findings:
        state = "incompatible"
    elif not past.versions:
        state = "new"
    elif past.versions[-1].schema == past.schema:
        state = "unchanged"
    return Verdict(
        file=contract.file,
        subject=contract.subject,
        state=state,
        mode=mode,
        versions=tuple((version.label, version.where) for version in past.versions),
        findings=findings,
    )


def removed(contract: Contract, mode: Mode) -> Verdict:
    """Returns the verdict on a subject that has no file now. `contract` is its last version.

    A subject may be removed only if the mode of its last version is NONE, which promises nothing to readers.
    """
    try:
        mode = _mode(contract, mode)
    except ValueError:
        mode = DEFAULT_MODE
    finding = SchemaFinding(
        rule="SUBJECT_REMOVED",
        path="/",
        line=1,
        text=f"{contract.subject} no longer has a schema: its readers break",
        hint=f'keep the file; to retire the subject, set "{COMPATIBILITY}": "NONE" in the file, wait until nobody '
        "reads the subject's data, and only then delete the file",
    )
    return Verdict(
        file=contract.file,
        subject=contract.subject,
        state="removed",
        mode=mode,
        findings=() if mode is Mode.NONE else (finding,),
    )


def _mode(contract: Contract, mode: Mode) -> Mode:
    own_mode = contract.schema.get(COMPATIBILITY) if isinstance(contract.schema, dict) else None
    return mode if own_mode is None else Mode(own_mode)


def _invalid(contract: Contract, rule: str, path: str, trouble: str) -> Verdict:
    finding = SchemaFinding(rule=rule, path=path, line=contract.line(path), text=trouble)
    return Verdict(file=contract.file, subject=contract.subject, state="invalid", findings=(finding,))


def _grouped(contract: Contract, past: Past, problems_found: Sequence[Problem], mode: Mode) -> Iterator[SchemaFinding]:
    """Yields one finding for each problem. A problem that occurs with several versions is one finding."""
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems_found:
        text = problem.text.replace(problem.against, "") if problem.against else problem.text
        groups.setdefault((problem.rule, problem.path, problem.breaks, text, problem.hint), []).append(problem)
    for group in groups.values():
        labels = tuple(dict.fromkeys(problem.against for problem in group if problem.against))
        last = group[-1]
        yield SchemaFinding(
            rule=last.rule,
            path=last.path,
            line=contract.line(last.path.removeprefix(past.at)),
            text=_sentence(last, past.label, labels, mode),
            hint=last.hint,
            breaks=last.breaks,
            against=labels,
            strict=last.strict,
        )


def _sentence(problem: Problem, label: str, labels: Sequence[str], mode: Mode) -> str:
    text = problem.text.replace("the new schema", label)
    if problem.strict or not labels:
        return f"{text} ({mode})"
    earlier = labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
    if problem.breaks == "new readers":
        return f"{label} cannot read {earlier} data ({mode}): new readers break: {text}"
    return f"{earlier} cannot read {label} data ({mode}): old readers break: {text}"
