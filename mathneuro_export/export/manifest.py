"""The manifest: what was read, how the masks were made, what was written, with a digest over all of it.

`Manifest` is the typed form (pydantic); unknown keys are ignored on reading. The digest is taken over the JSON document
itself, so that a reader of another version checks the same bytes. The JSON Schema beside this module is
`Manifest.model_json_schema()`; `python -m mathneuro_export.export.manifest` prints it.
"""

import hashlib
import json
import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mathneuro_export.checkpoint.strictjson import canonical, read_json
from mathneuro_export.errors import Error

SCHEMA = 1

Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _relative(name: str) -> str:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or str(path) != name:
        raise ValueError(f"{name!r} is not a plain path below the folder")
    return name


RelativePath = Annotated[str, AfterValidator(_relative)]
CorpusName = Annotated[str, Field(pattern=r"^(math|general|general-[1-9][0-9]*)$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class FileEntry(_Model):
    """Size in bytes and sha256 of one file."""

    size: Count
    sha256: Sha256


class Tool(_Model):
    name: str
    version: str


class SourceEntry(_Model):
    """The checkpoint that was read; `parent` is the digest of a manifest found in it."""

    id: str
    revision: str | None = None
    architecture: str
    tokenizer: Sha256 | None = None
    files: dict[RelativePath, FileEntry]
    parent: str | None = None


class CalibrationEntry(_Model):
    """One corpus as it was used. `batches` holds [samples, padded length] of each batch, in order.

    `expert_tokens`: for each statistic of experts, by its name in the statistics file, the tokens that each expert saw:
    one number for a matrix, E for a tensor that holds E of them.
    """

    spec: str
    digest: Sha256
    samples: Count
    sample_digests: list[str]
    blocks: Count
    tokens: Count
    truncated: Count
    template: str | None = None
    chat_template: bool = False
    seed: int
    max_length: Count
    special_tokens: dict[str, Any] = {}
    batches: list[tuple[int, int]] = []
    expert_tokens: dict[str, list[Count]] = {}


class Selection(_Model):
    proportion: Annotated[float, Field(gt=0, lt=1)]
    control: Literal["random", "wanda", "wanda-matched", "mirror"] | None = None
    seed: int
    include: list[str] = []
    exclude: list[str] = []
    layers: str | None = None
    lm_head: bool = False
    min_expert_tokens: Count = 0
    parents: list[Sha256] = []


class Edit(_Model):
    operation: Literal["scale", "prune"]
    factor: float
    factor_source: Literal["default", "option", "recipe"]


class Counts(_Model):
    """Weights in each corpus's top, in the mask, and (after rounding) changed; `changed` is absent in a RUN."""

    top: dict[CorpusName, Count | list[Count]]
    masked: Count | list[Count]
    changed: Count | list[Count] | None = None


class TensorEntry(_Model):
    """One target. `input_axis` is the axis of the matrix the statistic runs along: 1 for [out, in], 0 for [in, out]."""

    shape: list[Count]
    dtype: Literal["F32", "F16", "BF16"]
    file: RelativePath
    statistic: str
    input_axis: Literal[0, 1] = 1
    k: Count
    threshold: dict[CorpusName, float | list[float | None] | None]
    count: Counts
    mask: Sha256


class Manifest(_Model):
    """The whole document; see the module's docstring."""

    schema_: Literal[1] = Field(alias="schema")
    tool: Tool
    created: str
    environment: dict[str, Any]
    source: SourceEntry
    calibration: dict[CorpusName, CalibrationEntry]
    selection: Selection
    edit: Edit | None = None
    recipe: dict[str, Any] | None = None
    tensors: dict[str, TensorEntry]
    skipped: dict[str, list[str]]
    output: dict[RelativePath, FileEntry]
    left_out: list[str] = []
    warnings: list[dict[str, Any]] = []
    digest: Sha256


def digest_of(document: dict[str, Any]) -> str:
    """sha256 (hex) of the canonical JSON of a manifest document without its `digest`."""
    return hashlib.sha256(canonical({k: v for k, v in document.items() if k != "digest"})).hexdigest()


def seal(document: dict[str, Any]) -> bytes:
    """The bytes of manifest.json: the document with its digest, validated, indented."""
    sealed = {**document, "digest": digest_of(document)}
    Manifest.model_validate_json(json.dumps(sealed))
    return (json.dumps(sealed, indent=1, ensure_ascii=False) + "\n").encode()


def read_document(path: Path) -> dict[str, Any]:
    """The raw JSON object of a manifest file.

    Raises:
        Error: not JSON, duplicate keys, no object, or a schema this version does not read.
    """
    document = read_json(path)
    if not isinstance(document, dict):
        raise Error(f"{path.name}: expected a JSON object, found {type(document).__name__}; is this a manifest?")
    schema = document.get("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        raise Error(
            f"{path.name}: schema {schema!r} is not {SCHEMA}, the one this version reads; update mathneuro-export"
        )
    return document


def parse(document: dict[str, Any], name: str = "manifest.json") -> Manifest:
    """The typed manifest of a document.

    Raises:
        Error: the first field that is missing or of the wrong form.
    """
    try:
        return Manifest.model_validate_json(json.dumps(document))
    except (ValidationError, ValueError) as error:
        raise Error(f"{name}: {_first_problem(error)}; the manifest is damaged or was edited by hand") from None


def _first_problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return re.sub(r"\s+", " ", f"{where}: {first['msg']}")
    return re.sub(r"\s+", " ", str(error))


if __name__ == "__main__":
    print(json.dumps(Manifest.model_json_schema(), indent=1))
