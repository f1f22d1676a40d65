"""The main job on the bundled model: identify, prune, a random control, scale, verify, and measures of all four."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mathneuro_export.api import identify, prune, scale
from mathneuro_export.checkpoint.durable import make_folder
from mathneuro_export.errors import VerificationError
from mathneuro_export.export.verify import verify
from mathneuro_export.talk import Talk

PROPORTION = 0.05
FACTOR = 1.1
FOLDER = Path(str(resources.files("mathneuro_export.demo")))
MODEL = FOLDER / "model"


@dataclass(frozen=True, slots=True)
class Row:
    """One model: accuracy is exact match on held-out sums, losses are nats per token; `checkpoint` is its folder."""

    name: str
    proportion: float | None
    factor: float | None
    math_accuracy: float
    math_loss: float
    general_loss: float
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The rows of the table, and whether every output was verified against the bundled model."""

    rows: tuple[Row, ...]
    verified: bool

    def as_json(self) -> dict[str, Any]:
        return {"rows": [asdict(row) for row in self.rows], "verified": self.verified}


def run_demo(folder: Path, *, overwrite: bool = False, talk: Talk = Talk()) -> Outcome:  # noqa: B008  # frozen
    """Do the main job below `folder` (run, pruned, random, scaled) and measure on text held out from calibration.

    Raises:
        UsageError: a folder is there and `overwrite` is not set.
        VerificationError: an output differs from what its manifest says.
    """
    common: dict[str, Any] = {"talk": talk, "overwrite": overwrite}
    run = folder / "run"
    make_folder(folder)
    talk.say("identify: which weights matter for sums and not for stories")
    identify(MODEL, run, math="builtin:demo-math", general="builtin:demo-general", proportion=PROPORTION, **common)
    talk.say("prune, prune a random control of the same size, scale: from the same statistics")
    prune(MODEL, folder / "pruned", from_run=run, **common)
    prune(MODEL, folder / "random", from_run=run, control="random", **common)
    scale(MODEL, folder / "scaled", from_run=run, factor=FACTOR, **common)
    talk.say("verify: only the masked weights differ from the bundled model")
    for name in ("pruned", "random", "scaled"):
        report = verify(folder / name, MODEL)
        if not report.ok:
            raise VerificationError(f"{folder / name}: {report.problems[0].message}; please report it")
    talk.say("measure: exact match on held-out sums, loss on held-out stories")
    rows = [_measure("base", None, None, MODEL)]
    for name, factor in (("pruned", 0.0), ("random", 0.0), ("scaled", FACTOR)):
        rows.append(_measure(name, PROPORTION, factor, folder / name))
    return Outcome(tuple(rows), verified=True)


def _measure(name: str, proportion: float | None, factor: float | None, checkpoint: Path) -> Row:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from mathneuro_export.evaluation.measures import score
    from mathneuro_export.models.quiet import quiet

    with quiet():
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, local_files_only=True).eval()
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    sums = [(row["question"], " " + row["answer"]) for row in _rows("math_heldout.jsonl")]
    stories = [("", row["text"]) for row in _rows("general_heldout.jsonl")]
    math = score(model, tokenizer, sums, end=True)
    general = score(model, tokenizer, stories)
    return Row(name, proportion, factor, math.accuracy, math.loss, general.loss, str(checkpoint))


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
