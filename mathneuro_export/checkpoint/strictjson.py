"""JSON as strict as the formats here need it: UTF-8, no duplicate keys, finite numbers, bounded size and depth."""

import json
import math
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

from ..errors import Error
from .regular import label, open_regular, quote, reason

MAX_DEPTH = 100


class _JsonError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _JsonError(f"the key {quote(key)} stands twice in one object")
            seen.add(key)
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _JsonError(f"the number {quote(text)} is out of range")
    return value


def _constant(text: str) -> NoReturn:
    raise _JsonError(f"{text} is no JSON number")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise _JsonError(f"it is nested deeper than {MAX_DEPTH} levels")


def parse_json(data: bytes, what: str) -> Any:
    """Parse one JSON document; `what` names it in the message.

    Raises:
        Error: not UTF-8, a byte order mark, bad syntax, a duplicate key, NaN or an infinity, a lone surrogate,
            or nesting deeper than `MAX_DEPTH`.
    """
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_constant, parse_float=_finite
        )
        if isinstance(value, (dict, list)):
            _check_depth(value)
        if b"\\u" in data:
            canonical(value)
    except UnicodeDecodeError as error:
        raise Error(f"{what}: byte {error.start} is not UTF-8; expected JSON in UTF-8, get the file again") from None
    except UnicodeEncodeError:
        raise Error(f"{what}: an escape is half a surrogate pair; expected valid JSON, get the file again") from None
    except RecursionError:
        raise Error(f"{what}: is nested deeper than {MAX_DEPTH} levels; get the file again") from None
    except ValueError as error:
        raise Error(f"{what}: is not valid JSON: {_one_line(error)}; get the file again") from None
    return value


def _one_line(error: ValueError) -> str:
    return " ".join(str(error).split())


def read_json(path: Path, limit: int = 100_000_000) -> Any:
    """Read a JSON file of at most `limit` bytes.

    Raises:
        Error: as `parse_json`, or the file is missing, no regular file, or longer than `limit`.
    """
    with open_regular(path) as file:
        try:
            data = _read_bounded(file, limit + 1)
        except OSError as error:
            raise Error(f"{label(path)}: cannot be read ({reason(error)}); check the disk") from None
    if len(data) > limit:
        raise Error(f"{label(path)}: is longer than {limit} bytes, expected a small JSON file; get the file again")
    if data.startswith(b"version https://git-lfs"):
        raise Error(f"{label(path)}: is a git-lfs pointer, not the file; run `git lfs pull` in its folder")
    return parse_json(data, label(path))


def _read_bounded(file: FileIO, count: int) -> bytes:
    parts: list[bytes] = []
    while count > 0 and (part := file.read(min(count, 1 << 20))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def canonical(value: Any) -> bytes:
    """The bytes a digest is taken of: sorted keys, no spaces, UTF-8. NaN and infinities raise ValueError."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")
