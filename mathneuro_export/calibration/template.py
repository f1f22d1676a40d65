"""Templates that make one text of a row's columns: `{question}\\n{solution}`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mathneuro_export.errors import Error, UsageError

_PART = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]|[^{}]+")


@dataclass(frozen=True, slots=True)
class Template:
    """Literal text and fields in turn: `literals[0] fields[0] literals[1] ... fields[-1] literals[-1]`."""

    text: str
    literals: tuple[str, ...]
    fields: tuple[str, ...]

    def fill(self, row: Mapping[str, Any], where: str) -> tuple[str, int]:
        """The text for a row, and the offset at which its last field begins.

        Lists are joined by newlines, other values are as `str` gives them.
        Errors: `Error` that begins with `where` for a column that is missing or null.
        """
        filled, start = self.literals[0], 0
        for field, literal in zip(self.fields, self.literals[1:], strict=True):
            value = row.get(field)
            if value is None:
                found = "null" if field in row else "not there"
                raise Error(f"{where}: column {field!r} is {found}; expected a value for the template {self.text!r}")
            start = len(filled)
            filled += _text(value) + literal
        return filled, start


def parse_template(text: str) -> Template:
    """Read a template: `{name}` is a column, `{{` and `}}` are braces, `\\n` and `\\t` a newline and a tab.

    Errors: `UsageError` for a brace that stands alone, an attribute, index, conversion or format, or no field at all.
    """
    literals, fields = [""], []
    for part in _PART.findall(text):
        if part in ("{{", "}}"):
            literals[-1] += part[0]
        elif part in ("{", "}"):
            raise UsageError(f"template {text!r}: a brace without its partner; write {{{{ or }}}} for one in the text")
        elif part[0] == "{":
            name = part[1:-1]
            if not name.strip() or set(name) & set(".[]:!"):
                raise UsageError(f"template {text!r}: {part} is no column's name; expected fields such as {{question}}")
            fields.append(name)
            literals.append("")
        else:
            literals[-1] += part.replace("\\n", "\n").replace("\\t", "\t")
    if not fields:
        raise UsageError(f"template {text!r}: names no column; expected fields such as {{question}}")
    return Template(text, tuple(literals), tuple(fields))


def _text(value: Any) -> str:
    return "\n".join(_text(item) for item in value) if isinstance(value, list) else str(value)
