"""Whether two runs can be compared, before any number: what differs between them but the masks, by severity."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from mathneuro_export.checkpoint.regular import quote
from mathneuro_export.export.diff_input import Input
from mathneuro_export.export.manifest import CalibrationEntry

Severity = Literal["high", "medium", "low"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")


@dataclass(frozen=True, slots=True)
class Warn:
    """One difference; `high`: the numbers mislead, `medium`: they mix two causes, `low`: good to know."""

    code: str
    severity: Severity
    message: str

    def as_json(self) -> dict[str, str]:
        """As it stands under `warnings`."""
        return {"code": self.code, "severity": self.severity, "message": self.message}


def by_severity(warnings: list[Warn]) -> tuple[Warn, ...]:
    """The gravest first."""
    return tuple(sorted(warnings, key=lambda warning: SEVERITIES.index(warning.severity)))


def comparability(a: Input, b: Input) -> list[Warn]:
    """What the two manifests say differently; what neither or only one of them says is no difference, parents apart."""
    return [*_models(a, b), *_selections(a, b), *_corpora(a, b), *_making(a, b)]


def _models(a: Input, b: Input) -> Iterator[Warn]:
    yield from _differ(
        "architecture", "high", "architecture", a.manifest.source.architecture, b.manifest.source.architecture
    )
    tokenizers = a.manifest.source.tokenizer, b.manifest.source.tokenizer
    if None not in tokenizers:
        yield from _differ("tokenizer", "high", "tokenizer digest", *(str(digest)[:16] for digest in tokenizers))
    digits = [item.document["source"].get("digits") for item in (a, b)]
    if None not in digits:
        yield from _differ("digits", "high", "tokenisation of digits", *digits)


_RULES: tuple[tuple[str, Severity], ...] = (
    ("proportion", "high"),
    ("control", "high"),
    ("include", "medium"),
    ("exclude", "medium"),
    ("layers", "medium"),
    ("lm_head", "medium"),
    ("min_expert_tokens", "medium"),
)


def _selections(a: Input, b: Input) -> Iterator[Warn]:
    for name, severity in _RULES:
        values = (getattr(item.manifest.selection, name) for item in (a, b))
        yield from _differ(name.replace("_", "-"), severity, name.replace("_", " "), *values)
    if "random" in (a.manifest.selection.control, b.manifest.selection.control):
        yield from _differ(
            "control-seed", "low", "seed of the control", a.manifest.selection.seed, b.manifest.selection.seed
        )
    parents = [len(item.manifest.selection.parents) for item in (a, b)]
    if parents[0] != parents[1]:
        said = f"A from {parents[0]}, B from {parents[1]} (0: selected from its own statistics)"
        yield Warn("parents", "medium", f"masks made from other runs: {said}")


_USED: tuple[tuple[str, Severity, str, Callable[[CalibrationEntry], Any]], ...] = (
    ("corpus", "medium", "digest of the text", lambda used: used.digest[:16]),
    ("samples", "medium", "samples", lambda used: used.samples),
    ("seed", "low", "seed", lambda used: used.seed),
    ("max-length", "low", "longest sample in tokens", lambda used: used.max_length),
    ("template", "medium", "chat template", lambda used: used.chat_template),
    ("special-tokens", "low", "special tokens", lambda used: used.special_tokens),
)


def _corpora(a: Input, b: Input) -> Iterator[Warn]:
    used_a, used_b = a.manifest.calibration, b.manifest.calibration
    if used_a.keys() != used_b.keys():
        yield from _differ("corpora", "high", "corpora", ", ".join(sorted(used_a)), ", ".join(sorted(used_b)))
    for corpus in sorted(used_a.keys() & used_b.keys()):
        for code, severity, what, read in _USED:
            yield from _differ(code, severity, f"corpus {corpus}: {what}", read(used_a[corpus]), read(used_b[corpus]))


def _making(a: Input, b: Input) -> Iterator[Warn]:
    edits = a.manifest.edit, b.manifest.edit
    if edits[0] and edits[1]:
        yield from _differ("edit", "low", "edit", *(f"{edit.operation} by {edit.factor:g}" for edit in edits if edit))
    yield from _differ("tool", "low", "tool version", a.manifest.tool.version, b.manifest.tool.version)


def _differ(code: str, severity: Severity, what: str, a: Any, b: Any) -> Iterator[Warn]:
    if a != b:
        yield Warn(code, severity, f"{what} differs: {_said(a)} in A, {_said(b)} in B")


def _said(value: Any) -> str:
    return (
        "none"
        if value in (None, [], "")
        else quote(value)
        if not isinstance(value, str | int | float)
        else f"{value}"[:120]
    )
