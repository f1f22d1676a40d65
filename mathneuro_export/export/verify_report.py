"""What `verify` found: problems, notes, and how reading errors become problems."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mathneuro_export.errors import Error

Progress = Callable[[str, int, int], None]
"""Called with the stage ("hash", "base", "compare" or "select"), bytes done and bytes in all of that stage."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One difference from the manifest; `file` is relative to the folder, `tensor` a name on disk."""

    file: str | None
    tensor: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `verify`.

    Attributes:
        ok: whether there is no problem.
        files: files of the folder that were read and hashed, the manifest among them.
        elements_checked: in an OUT the elements compared with the base; in a RUN the elements of targets whose
            selection was made again; 0 without a base.
        problems: in the order found.
        notes: sentences on what was not proved, and why.
    """

    ok: bool
    files: int
    elements_checked: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The document that `verify --json` prints."""
        return {
            "ok": self.ok,
            "files": self.files,
            "elements_checked": self.elements_checked,
            "problems": [asdict(problem) for problem in self.problems],
            "notes": list(self.notes),
        }


def printable(name: str) -> str:
    """A file name that can be printed on one line and encoded, whatever bytes it has on disk."""
    name = name.encode("utf-8", "backslashreplace").decode()
    return name if name.isprintable() else repr(name)


def guarded(found: Iterator[Problem], file: str | None, tensor: str | None = None) -> Iterator[Problem]:
    """The problems of one check; an error that ends it early is one more problem, not an exception."""
    try:
        yield from found
    except Error as error:
        yield Problem(file, tensor, str(error))
    except MemoryError:
        yield Problem(file, tensor, "could not be checked: not enough memory; verify on a larger machine")
    except OSError as error:
        yield Problem(file, tensor, f"cannot be read ({error.strerror or type(error).__name__})")
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        yield Problem(file, tensor, f"could not be checked: {type(error).__name__}: {reason}; the file is damaged")
