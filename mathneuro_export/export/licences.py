"""What licences of well-known models ask of whoever publishes an edited one: its name, a line in its card, a file."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Duty:
    """`name`: how the repository's name must begin; `notice`: a line its card must show; `title`: of the licence."""

    title: str
    name: str | None
    notice: str | None


_DUTIES: tuple[tuple[str, Duty], ...] = (
    (r"(?:meta-?)?llama-?3", Duty("Llama 3 licence", "Llama 3", "Built with Meta Llama 3.")),
    (r"(?:meta-?)?llama-?(?:3\.\d+|4)", Duty("Llama licence", "Llama", "Built with Llama.")),
    (r"(?:meta-?)?llama-?2", Duty("Llama 2 licence", None, None)),
    (
        "gemma",
        Duty(
            "Gemma terms",
            None,
            "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms.",
        ),
    ),
)


def duty_of(metadata: Mapping[str, Any]) -> Duty | None:
    """What the licence named in a card's metadata asks for; None where nothing of the kind is known."""
    for key in ("license", "license_name"):
        value = metadata.get(key)
        text = re.sub(r"[\s_]+", "-", str(value[0] if isinstance(value, list) and value else value).lower())
        text = re.sub(r"-(?:community-)?(?:licen[sc]e|community)(?:-agreement)?\Z", "", text)
        for pattern, duty in _DUTIES:
            if re.fullmatch(pattern, text):
                return duty
    return None


def licence_warnings(metadata: Mapping[str, Any], files: Iterable[str], repo_id: str) -> list[str]:
    """What a push should be warned of: a name the licence does not allow, and a licence text or notice not there."""
    duty = duty_of(metadata)
    if duty is None:
        return []
    warnings = []
    name = repo_id.rpartition("/")[2]
    plain = re.sub(r"[-_ ]+", " ", name).lower()
    if duty.name is not None and not plain.startswith(duty.name.lower()):
        warnings.append(f"{repo_id}: the {duty.title} asks that the model's name begin with {duty.name!r}")
    stems = {re.split(r"[.\-_]", path.rpartition("/")[2].lower())[0] for path in files}
    if not stems & {"license", "licence", "notice", "copying"}:
        warnings.append(
            f"{repo_id}: the {duty.title} asks for its text and a notice beside the weights; neither is there"
        )
    return warnings
