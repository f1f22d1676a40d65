"""Targets against the manifest's own selection: which names it keeps, and the reason it gives for every other."""

from collections.abc import Iterator, Mapping, Sequence

from mathneuro_export.checkpoint.header import Header
from mathneuro_export.errors import Error
from mathneuro_export.models.filters import UNUSED_HEAD, layers_of, narrow
from mathneuro_export.models.targets import NOT_OBSERVED

from .manifest import Manifest, Selection
from .verify_report import Problem, printable
from .verify_selection import observed_names

EMBEDDINGS = frozenset(
    [
        "embed_tokens",
        "embed_tokens_per_layer",
        "embed_positions",
        "embed_in",
        "wte",
        "wpe",
        "word_embeddings",
        "position_embeddings",
        "token_type_embeddings",
        "tok_embeddings",
        "embedding",
        "embeddings",
    ]
)
"""Last part of the modules that are embeddings in the models of transformers."""
HEADS = frozenset(("lm_head", "embed_out"))
"""Likewise of output layers; `output.weight` is one where it stands in no other module."""
_NARROWED = (UNUSED_HEAD, "outside --layers", "not included", "excluded", NOT_OBSERVED)


def check_kinds(manifest: Manifest, file: str) -> Iterator[Problem]:
    """Targets whose names say that they are none: embeddings, and an output layer that was not asked for."""
    for name in manifest.tensors:
        module = name.removesuffix(".weight").rpartition(".")[2]
        if module in EMBEDDINGS:
            yield Problem(file, name, "is a target, but by its name an embedding, which is never edited")
        elif (module in HEADS or name == "output.weight") and not manifest.selection.lm_head:
            yield Problem(file, name, "is a target, but by its name the output layer, and selection.lm_head is false")


def check_selection(manifest: Manifest, statistics: Header, file: str) -> Iterator[Problem]:
    """Every tensor with a statistic: a target, or skipped for the very reason, as the manifest's selection says.

    Linear maps without a statistic were narrowed too where the run calibrated, and not where it reused statistics; the
    order of names matters where two numbered lists are equally long. Any of these that fits will do.

    Raises:
        Error: the metadata of the statistics names no tensors.
    """
    observed, head = sorted(observed_names(statistics)), (statistics.metadata or {}).get("lm_head")
    if head is not None and (head not in observed or layers_of(observed)[head] is not None):
        yield Problem(file, head, "is named lm_head in the statistics, but has none there or stands in a layer")
    found = _found(manifest)
    others = sorted({name for reason in _NARROWED for name in manifest.skipped.get(reason, ())} - set(observed))
    first: list[Problem] = []
    for names in (observed, [*observed, *others], observed[::-1], [*observed, *others][::-1]):
        problems = list(_differences(manifest.selection, names, head, {name: found.get(name, []) for name in observed}))
        if not problems:
            return
        first = first or [Problem(file, problem.tensor, problem.message) for problem in problems]
    yield from first


def _found(manifest: Manifest) -> dict[str, list[str]]:
    """What the manifest calls each name."""
    found: dict[str, list[str]] = {name: ["a target"] for name in manifest.tensors}
    for reason, names in manifest.skipped.items():
        for name in names:
            found.setdefault(name, []).append(f"skipped ({reason})")
    return found


def _differences(
    selection: Selection, names: Sequence[str], head: str | None, found: Mapping[str, list[str]]
) -> Iterator[Problem]:
    try:
        kept, skipped = narrow(
            names,
            include=selection.include,
            exclude=selection.exclude,
            layers=selection.layers,
            lm_head=selection.lm_head,
            head=head,
        )
    except Error as error:
        yield Problem(None, None, f"its selection cannot be: {printable(str(error))}")
        return
    expected = dict.fromkeys(kept, "a target")
    expected.update({name: f"skipped ({reason})" for reason, left in skipped.items() for name in left})
    for name, said in found.items():
        if said != [expected[name]]:
            is_now = printable(" and ".join(said)) or "neither a target nor skipped"
            yield Problem(None, name, f"is {is_now}, but the manifest's selection makes it {expected[name]}")
