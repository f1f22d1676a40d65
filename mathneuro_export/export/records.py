"""The records in the journal of an output, checked before anything is done by them: a journal is a file like others."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from mathneuro_export.checkpoint.regular import quote
from mathneuro_export.errors import Error
from mathneuro_export.export.manifest import (
    CalibrationEntry,
    CorpusName,
    Count,
    FileEntry,
    RelativePath,
    Sha256,
    TensorEntry,
)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _Files(_Record):
    planned: list[str]
    clear: list[str]
    existed: bool


class _Statistics(_Record):
    file: FileEntry
    calibration: dict[CorpusName, CalibrationEntry]
    tokenizer: Sha256 | None
    environment: dict[str, Any]
    unobserved: list[str]
    notes: list[dict[str, Any]]


class _Spooled(_Record):
    name: str
    offset: Count
    rows: Count
    cols: Count
    nnz: Count
    digest: Sha256


class _Tensor(TensorEntry):
    spool: _Spooled | None = None


class _Shard(_Record):
    file: RelativePath
    source: FileEntry
    written: FileEntry | None
    tensors: dict[str, _Tensor]


_KINDS: Mapping[str, type[_Record]] = {"files": _Files, "statistics": _Statistics}


def check_records(records: Mapping[str, Any], where: str) -> None:
    """Check the form of the records this tool writes; keys that it does not know are passed over.

    Args:
        where: what messages call the journal.

    Raises:
        Error: a record of another form.
    """
    for key, value in records.items():
        kind = _Shard if key.startswith("shard:") else _KINDS.get(key)
        if kind is None:
            continue
        try:
            record = kind.model_validate_json(json.dumps(value))
        except (ValidationError, ValueError) as error:
            raise _damaged(where, key, _problem(error)) from None
        if isinstance(record, _Shard) and key != f"shard:{record.file}":
            raise _damaged(where, key, f"it is about {quote(record.file)}")


def _problem(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return quote(str(error))
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return quote(f"{place}: {first['msg']}" if place else first["msg"])


def _damaged(where: str, key: str, problem: str) -> Error:
    return Error(f"{where}: the record {quote(key)} is damaged ({problem}); begin anew with --overwrite or --no-resume")
