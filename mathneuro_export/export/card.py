"""The model card of an OUT: what was edited, how to prove it, what is not known of it, and the base's card below."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .licences import duty_of

if TYPE_CHECKING:
    from mathneuro_export.checkpoint.source import Source

HEADER_LIMIT: Final = 256 << 10
"""Longest YAML header of a base's card that is read, in bytes."""
_DEPTH: Final = 50
_KEPT: Final = ("license", "license_name", "license_link", "language", "library_name", "pipeline_tag", "datasets")
_LISTS: Final = {"language", "datasets", "license"}
_TAGS: Final = ("mathneuro", "mathneuro-export", "unevaluated")
_HEADER: Final = re.compile(r"\A\s*---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_TOKEN: Final = re.compile(r"hf_(?!transfer\b)[A-Za-z0-9]{8,}")
_CONTROLS: Final = {
    "random": "random: as many weights of each target as are math-specific, drawn at random",
    "wanda": "wanda: the whole top of the math corpus",
    "wanda-matched": "wanda-matched: the highest math scores, as many of each target as are math-specific",
    "mirror": "mirror: the tops of the general corpora without the math corpus's",
}
_SOURCES: Final = {"default": "the default", "option": "given", "recipe": "from a recipe"}

_LIMITS: Final = """\
## Limits

- **Nothing was evaluated.** This card reports what was changed, not what it does. Measure the checkpoint against its
  base and against a random control of the same size, with intervals, before you rely on it.
- Setting weights to 0 one by one makes a checkpoint neither smaller nor faster.
- A factor above 1 needs tuning for each model; 1.1 is the paper's setting for small models and 1.01 for one of 8B.
  Gains from scaling depend on the model: an independent study reports one on English GSM8K for a model of 1B at 1.1 and
  less on larger ones, none at 1.01 on Hindi GSM8K (200 items); two small models measured for this tool showed none.
- That pruning lowers scores on math far more than on other tasks was measured by the paper and by others on other
  models; whether it holds here is not known.
- The masks depend on the text: weights that serve digits or the form of an answer are found together with those that
  serve math, as far as the general text holds neither.
- The base's own evaluations, below if its card has any, are of the base.
"""
_CITATION: Final = """\
## Citation

The method is MathNeuro, [arXiv 2410.16930](https://arxiv.org/abs/2410.16930):

```bibtex
@inproceedings{christ2025math,
  title     = {Math Neurosurgery: Isolating Language Models' Math Reasoning Abilities Using Only Forward Passes},
  author    = {Christ, Bryan R. and Gottesman, Zack and Kropko, Jonathan and Hartvigsen, Thomas},
  booktitle = {Proceedings of the 63rd Annual Meeting of the Association for Computational Linguistics},
  year      = {2025},
  note      = {arXiv:2410.16930}
}
```
"""


@dataclass(frozen=True, slots=True)
class BaseCard:
    """A base's card: what of its metadata is kept, its body, and why the metadata could not be read, if so."""

    metadata: dict[str, Any] = field(default_factory=dict)
    body: str = ""
    problem: str | None = None


def read_base_card(text: str | None) -> BaseCard:
    """Split a README into metadata and body (LF line ends); metadata that cannot be read is none, with the reason."""
    if text is None:
        return BaseCard()
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    match = _HEADER.match(text)
    if match is None:
        return BaseCard({}, text)
    body = text[match.end() :]
    if len(match[1].encode("utf-8", "replace")) > HEADER_LIMIT:
        return BaseCard({}, body, f"it is longer than {HEADER_LIMIT} bytes")
    import yaml  # type: ignore[import-untyped]

    try:
        if _is_deep(match[1]):
            return BaseCard({}, body, f"it is nested deeper than {_DEPTH} levels")
        document = yaml.load(match[1], Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except MemoryError:
        raise
    except Exception as error:  # constructors of the parser raise anything: KeyError, AttributeError, IndexError
        kind = "" if isinstance(error, (yaml.YAMLError, ValueError)) else f"{type(error).__name__}: "
        return BaseCard({}, body, " ".join(f"{kind}{error}".split())[:200] or type(error).__name__)
    if document is None:
        return BaseCard({}, body)
    if not isinstance(document, dict):
        return BaseCard({}, body, f"it is {type(document).__name__}, expected names and values")
    return BaseCard(_kept(document), body)


def _is_deep(header: str) -> bool:
    """Whether YAML may nest deeper than any card does: brackets, or indicators and indentation within one line."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", header):
        depth = max(0, depth + (1 if bracket in "[{" else -1))
        if depth > _DEPTH:
            return True
    return re.search(rf"^[ ]{{{4 * _DEPTH},}}\S|(?:[-?:][ \t]+){{{_DEPTH},}}", header, re.MULTILINE) is not None


def _kept(document: Mapping[Any, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key in _KEPT:
        value = _strings(document.get(key))
        if value and (len(value) == 1 or key in _LISTS):
            kept[key] = value if isinstance(document[key], list) and key in _LISTS else value[0]
    kept["tags"] = _strings(document.get("tags"))
    bases = [name for name in _strings(document.get("base_model")) if _is_hub_id(name)]
    if bases:
        kept["base_model"] = bases
    return kept


def _strings(value: Any) -> list[str]:
    """A string or a list of strings as a list. YAML reads the language `no` as False."""
    values = value[:200] if isinstance(value, list) else [value]
    texts = ["no" if text is False else text for text in values]
    return [_clean(text) for text in texts if isinstance(text, str) and 0 < len(text) <= 500]


def _clean(text: str) -> str:
    return _redact(" ".join("".join(c if c.isprintable() else " " for c in text).split()))


def _redact(text: str) -> str:
    return _TOKEN.sub("hf_[redacted]", text)


def build_card(
    source: "Source", document: Mapping[str, Any], base_readme: str | None
) -> tuple[str, list[dict[str, Any]]]:
    """The README.md of an OUT and warnings for the manifest.

    It depends on nothing but its arguments, and on neither `created` nor `environment` of the manifest: the same
    inputs give the same card.

    Args:
        source: the checkpoint that was edited.
        document: the manifest as a JSON object; `output` and `digest` may be missing.
        base_readme: the source's own README.md, None where there is none.
    """
    base = read_base_card(base_readme)
    warnings: list[dict[str, Any]] = []
    if base.problem:
        message = (
            f"README.md: the metadata of the base's card cannot be read ({base.problem}); add license and language"
        )
        warnings.append({"code": "base-card", "message": _clean(message), "file": "README.md"})
    sections = [
        f"---\n{_yaml(_metadata(source, base.metadata))}---\n",
        _head(source, document, base.metadata),
        _changes(source, document),
        _proof(source, document),
        _LIMITS,
        _CITATION,
    ]
    if base.body.strip():
        sections.append("---\n")
        sections.append("## The base model's card\n")
        sections.append(_redact(base.body.strip("\n")) + "\n")
    return "\n".join(sections), warnings


def _metadata(source: "Source", base: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in base.items() if key not in ("tags", "base_model")}
    named = base.get("base_model", [])
    own: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if source.revision is not None and _is_hub_id(source.id):
        named = [source.id]
    if named:
        own |= {"base_model": named[0] if len(named) == 1 else named, "base_model_relation": "finetune"}
    tags = list(dict.fromkeys([*base.get("tags", []), *_TAGS]))
    return {**own, **kept, "tags": tags}


def _is_hub_id(text: str) -> bool:
    return re.fullmatch(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", text, re.ASCII) is not None


def _yaml(metadata: Mapping[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(dict(metadata), sort_keys=False, allow_unicode=True, width=1000, line_break="\n")
    return text


def _action(edit: Mapping[str, Any]) -> str:
    if edit.get("operation") == "prune" or edit.get("factor") == 0:
        return "set to 0"
    return f"multiplied by {_number(edit.get('factor'))}"


def _head(source: "Source", document: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    name = source.id.rpartition("/")[2]
    control = document["selection"].get("control")
    which = "control weights" if control else "math-specific weights"
    title = f"# {_inline(name)}, {which} {_action(document['edit'])}\n"
    kind = f" It is a **control** ({_inline(control)}), made to compare the math edit with." if control else ""
    duty = duty_of(base)
    notice = f"\n{duty.notice}\n" if duty is not None and duty.notice else ""
    return (
        f"{title}\nThis is {_base(source)} with some weights {_action(document['edit'])} and every other byte of its"
        f" weights as it was.{kind} It was made by {_inline(_tool(document))} and has not been evaluated.\n{notice}"
    )


def _base(source: "Source") -> str:
    if source.revision is None or not _is_hub_id(source.id):
        return _inline(source.id)
    link = f"[{_inline(source.id)}](https://huggingface.co/{source.id})"
    return f"{link} (revision {_inline(source.revision)})"


def _tool(document: Mapping[str, Any]) -> str:
    tool = document.get("tool", {})
    return f"{tool.get('name', 'mathneuro-export')} {tool.get('version', '')}".strip()


def _changes(source: "Source", document: Mapping[str, Any]) -> str:
    edit, selection, tensors = document["edit"], document["selection"], document["tensors"]
    weights = sum(math.prod(entry["shape"]) for entry in tensors.values())
    masked = sum(_total(entry["count"]["masked"]) for entry in tensors.values())
    changed = sum(_total(entry["count"].get("changed")) for entry in tensors.values())
    share = f"{100 * masked / weights:.4g} %" if weights else "none"
    rows = [
        ("Operation", _inline(str(edit["operation"]))),
        ("Factor", f"{_number(edit['factor'])} ({_SOURCES.get(edit['factor_source'], 'given')})"),
        ("Proportion", _number(selection["proportion"])),
        ("Control", _CONTROLS.get(selection.get("control") or "", "none: the math-specific weights")),
        *((f"Corpus {_inline(corpus)}", _corpus(entry)) for corpus, entry in document["calibration"].items()),
        ("Targets", f"{len(tensors):,} tensors with {weights:,} weights"),
        ("Masked weights", f"{masked:,}"),
        ("Changed weights (after rounding)", f"{changed:,}"),
        ("Masked share of all target weights", share),
    ]
    if selection.get("parents"):
        rows.append(("Masks", "taken from another run; its corpora are those above"))
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return (
        f"## What was changed\n\n| | |\n|---|---|\n{table}\n\nA weight is math-specific where the product of its size"
        " and its input's norm is among the highest share (the proportion) of its tensor on the math text and on none"
        " of the general texts. `mathneuro/manifest.json` lists every target with its counts, what was skipped and why,"
        " and the hash of every file; `mathneuro/masks.safetensors` holds the masks.\n"
    )


def _corpus(entry: Mapping[str, Any]) -> str:
    return f"{_inline(str(entry.get('spec')))}, {entry.get('samples', 0):,} samples, {entry.get('tokens', 0):,} tokens"


def _total(count: int | Sequence[int] | None) -> int:
    if count is None:
        return 0
    return count if isinstance(count, int) else sum(count)


def _number(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, (int, float)) else _inline(str(value))


def _proof(source: "Source", document: Mapping[str, Any]) -> str:
    base = "BASE"
    if source.revision is not None and _is_hub_id(source.id):
        base = f"{source.id}@{source.revision}" if re.fullmatch(r"[\w.-]+", source.revision) else source.id
    factor = _number(document["edit"]["factor"])
    where = "" if base != "BASE" else "`BASE` is the folder of the unedited checkpoint. "
    return (
        "## How to verify it, and how to make it again\n\n"
        f"{where}In this folder:\n\n```\nmathneuro-export verify . --base {base}\n```\n\n"
        "reads every file and proves that only the masked weights differ from the base, each of them by the factor, and"
        f" {_masks_proof(document['selection'])}.\n\n"
        f"```\nmathneuro-export apply . {base} -o OUT --factor {factor}\n```\n\n"
        "makes the same weights again from the base; another factor gives another edit of the same weights.\n"
    )


def _masks_proof(selection: Mapping[str, Any]) -> str:
    if selection.get("parents"):
        return "that the masks, which came from another run, are those the manifest names"
    if selection.get("control") == "random":
        return "that the random masks have the sizes that follow from the stored statistics"
    return "that the masks follow from the stored statistics"


def _inline(text: str) -> str:
    """One line of Markdown that shows a text from outside as it is: no markup, no cell of its own, no HTML."""
    text = _clean(text)[:300].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#!$])", r"\\\1", text)
