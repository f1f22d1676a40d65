"""Rows of a corpus file: .jsonl, .json, .csv or .txt, in UTF-8. No row is guessed at: what is not valid is an error."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mathneuro_export.errors import Error

FILE_LIMIT = 4 * 1024**3

Row = tuple[str, dict[str, Any]]
"""Where the row stands, for messages ("line 3", "item 3"), and its columns."""


def read_rows(path: Path) -> list[Row]:
    """All rows of a file, in order. Blank lines are skipped; a text that stands alone is a row with the column `text`.

    Errors: `Error` naming file and line for what cannot be read, is no UTF-8, JSON or CSV, or is above 4 GiB.
    """
    try:
        size = path.stat().st_size
        if size > FILE_LIMIT:
            raise Error(f"{path.name}: has {size} bytes, expected at most {FILE_LIMIT}; cut the corpus")
        return list(READERS[path.suffix.lower()](path))
    except (OSError, MemoryError) as error:
        raise Error(
            f"{path.name}: cannot be read: {getattr(error, 'strerror', None) or 'not enough memory'}"
        ) from error


def _jsonl(path: Path) -> Iterator[Row]:
    for number, line in _lines(path):
        where = f"line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Error(f"{path.name}, {where}: is no JSON: {_reason(error)}; expected one object a line") from error
        yield where, _row(value, path, where)


def _json(path: Path) -> Iterator[Row]:
    try:
        value = json.loads(_decode(path.read_bytes(), path))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise Error(f"{path.name}, line {line}: is no JSON: {_reason(error)}; expected a list of objects") from error
    if not isinstance(value, list):
        raise Error(f"{path.name}: holds {_kind(value)}, expected a list of objects or texts")
    for number, item in enumerate(value, 1):
        where = f"item {number}"
        yield where, _row(item, path, where)


def _csv(path: Path) -> Iterator[Row]:
    text = _decode(path.read_bytes(), path)
    limit = csv.field_size_limit(2**31 - 1)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) != len(header):
            raise Error(f"{path.name}, line 1: a column's name stands twice in {header}; rename one")
        for fields in reader:
            if not fields:
                continue
            where = f"line {reader.line_num}"
            if len(fields) != len(header):
                raise Error(f"{path.name}, {where}: has {len(fields)} fields, expected the header's {len(header)}")
            yield where, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise Error(f"{path.name}, line {reader.line_num}: is no CSV: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _txt(path: Path) -> Iterator[Row]:
    for number, line in _lines(path):
        yield f"line {number}", {"text": line}


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".txt": _txt}


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank, split at newlines only: form feeds and U+2028 stay inside a line."""
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            line = _decode(data, path, number).removesuffix("\n").removesuffix("\r")
            if line.strip():
                yield number, line


def _decode(data: bytes, path: Path, first_line: int = 1) -> str:
    try:
        return data.decode("utf-8-sig" if first_line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        found = f"byte 0x{data[error.start]:02x}"
        raise Error(f"{path.name}, line {line}: {found} is no valid UTF-8; save the file as UTF-8") from error


def _row(value: Any, path: Path, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"text": value}
    if not isinstance(value, dict):
        raise Error(f"{path.name}, {where}: is {_kind(value)}, expected an object with named columns")
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _reason(error: BaseException) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else getattr(error, "msg", str(error))
