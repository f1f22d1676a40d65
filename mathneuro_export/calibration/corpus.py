"""A corpus: the texts a statistic is taken over, drawn from a SPEC in a seeded order. No torch here."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mathneuro_export.calibration.rows import READERS, Row, read_rows
from mathneuro_export.calibration.template import Template, parse_template
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.models.targets import Note

DEFAULT_SAMPLES = 500

_BUILTIN = {
    "math": ("data", "math.jsonl", "{question}\\n{answer}"),
    "general": ("data", "general.jsonl", None),
    "demo-math": ("demo", "math_calibration.jsonl", "{question} {answer}"),
    "demo-general": ("demo", "general_calibration.jsonl", None),
}
_PRESETS = ("gsm8k", "math", "mmlu", "race", "wikitext")
_FORMS = ", ".join(READERS)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts in the order drawn, and what the manifest says of them.

    `spec` never holds a folder. `template` is None where a column is used whole. `answers` holds for each text the
    offset at which its template's last field begins (0 for a plain column). `available` counts the samples there were
    to draw from. `digest` is over the texts alone, whatever file form they came in; `sample_digests` are the first 16
    hex digits of each text's sha256.
    """

    name: str
    spec: str
    texts: tuple[str, ...]
    template: str | None
    available: int
    digest: str
    sample_digests: tuple[str, ...]
    seed: int
    answers: tuple[int, ...]
    notes: tuple[Note, ...] = ()


def load_corpus(name: str, spec: str, num_samples: int | None, seed: int) -> Corpus:
    """Read a SPEC and draw `num_samples` of its samples; None is the default, at most 500.

    More than there are: all of them, in their drawn order, with a note. The option is named after `name` in messages.
    Errors: `UsageError` for a SPEC or number that cannot be meant; `Error` for a file that is missing, empty or bad.
    """
    option = "--math" if name == "math" else "--general"
    if num_samples is not None and num_samples < 1:
        raise UsageError(f"--num-samples {num_samples}: expected at least 1")
    path, shown, choice = _locate(option, spec)
    rows = _read(option, path, builtin=spec.startswith("builtin:"))
    texts, template = _make_texts(path.name, rows, choice)
    order = draw_order(len(texts), seed)[: DEFAULT_SAMPLES if num_samples is None else num_samples]
    chosen = tuple(texts[i][0] for i in order)
    hashes = [_sha256(texts[i][0], f"{path.name}, {rows[i][0]}") for i in order]
    notes: tuple[Note, ...] = ()
    if num_samples is not None and num_samples > len(texts):
        message = f"{name}: {num_samples} samples were asked for, {path.name} has {len(texts)}; all are used"
        notes = (Note("fewer-samples", message, {"corpus": name, "asked": num_samples, "available": len(texts)}),)
    return Corpus(
        name=name,
        spec=shown,
        texts=chosen,
        template=template.text if template else None,
        available=len(texts),
        digest=hashlib.sha256(b"".join(hashes)).hexdigest(),
        sample_digests=tuple(digest.hex()[:16] for digest in hashes),
        seed=seed,
        answers=tuple(texts[i][1] for i in order),
        notes=notes,
    )


def draw_order(count: int, seed: int) -> list[int]:
    """The seeded shuffle: 0 to `count` - 1, sorted by the sha256 of "SEED:INDEX". The same for ever."""
    return sorted(range(count), key=lambda index: hashlib.sha256(f"{seed}:{index}".encode()).digest())


def _locate(option: str, spec: str) -> tuple[Path, str, str | None]:
    """The file, the SPEC to show, and the column or template (None: not given)."""
    if spec.startswith("builtin:"):
        kind = spec.removeprefix("builtin:")
        if kind not in _BUILTIN:
            raise UsageError(f"{option} {spec!r}: expected builtin: and one of {', '.join(_BUILTIN)}")
        folder, file, choice = _BUILTIN[kind]
        return Path(str(resources.files("mathneuro_export") / folder / file)), spec, choice
    if spec.startswith("hf:") or spec in _PRESETS:
        raise UsageError(
            f"{option} {spec!r}: data sets of the Hub are not supported yet; save the rows as FILE.jsonl and name that"
        )
    path, choice = _split(spec)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        raise UsageError(f"{option} {spec!r}: .parquet is not supported yet; save the rows as .jsonl and name that")
    if suffix not in READERS:
        raise UsageError(f"{option} {spec!r}: expected builtin:math, builtin:general, or a file ({_FORMS})")
    if choice is not None and suffix == ".txt":
        raise UsageError(f"{option} {spec!r}: a .txt file has no columns; name the file alone")
    if choice == "":
        raise UsageError(f"{option} {spec!r}: no column or template after the colon; give one or leave the colon out")
    column = choice is not None and not _is_template(choice)
    return path, f"{path.name}:{choice}" if column else path.name, choice


def _split(spec: str) -> tuple[Path, str | None]:
    """File and column or template; a colon may stand in the file's name, a Windows drive, or the template."""
    colons = [i for i, character in enumerate(spec) if character == ":"]
    heads = [(Path(spec), None), *((Path(spec[:i]), spec[i + 1 :]) for i in colons)]
    for path, rest in heads:
        if path.is_file():
            return path, rest
    known = (*READERS, ".parquet")
    return next(((path, rest) for path, rest in heads[1:] if path.suffix.lower() in known), heads[0])


def _is_template(choice: str) -> bool:
    return "{" in choice or "}" in choice


def _read(option: str, path: Path, builtin: bool) -> list[Row]:
    if not path.is_file():
        raise Error(
            f"{option} {path.name}: the package lacks this file; install it again"
            if builtin
            else f"{option} {path.name}: no such file; expected a corpus ({_FORMS})"
        )
    rows = read_rows(path)
    if not rows:
        raise Error(f"{option} {path.name}: holds no sample; expected at least one")
    return rows


def _make_texts(file: str, rows: Sequence[Row], choice: str | None) -> tuple[list[tuple[str, int]], Template | None]:
    if choice is not None and _is_template(choice):
        template = parse_template(choice)
        return [template.fill(row, f"{file}, {where}") for where, row in rows], template
    column = choice if choice is not None else _only_column(file, rows[0][1])
    return [(_cell(file, where, row, column), 0) for where, row in rows], None


def _only_column(file: str, row: dict[str, Any]) -> str:
    texts = [name for name, value in row.items() if isinstance(value, str)]
    if "text" in row:
        return "text"
    if len(texts) == 1:
        return texts[0]
    known = ", ".join(row) or "none"
    raise Error(f"{file}: which column is the text? It has {known}; write {file}:COLUMN or a template after the colon")


def _cell(file: str, where: str, row: dict[str, Any], column: str) -> str:
    value = row.get(column)
    if isinstance(value, str):
        return value
    if column not in row:
        known = ", ".join(row) or "none"
        raise Error(f"{file}, {where}: has no column {column!r}; its columns are {known}")
    found = "null" if value is None else f"a {type(value).__name__}"
    raise Error(f"{file}, {where}: column {column!r} is {found}, expected text; a template takes any value")


def _sha256(text: str, where: str) -> bytes:
    try:
        return hashlib.sha256(text.encode()).digest()
    except UnicodeEncodeError as error:
        raise Error(f"{where}: holds half a surrogate pair, which is no text; write the character whole") from error
