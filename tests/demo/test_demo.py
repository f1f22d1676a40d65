"""The bundled model: that it loads as users load models, that its text is held out, and that the effect is there."""

import json
from pathlib import Path

import pytest

from mathneuro_export.checkpoint.source import open_source
from mathneuro_export.demo.run import FOLDER, MODEL, Outcome, run_demo


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_demo(tmp_path_factory.mktemp("demo") / "out")


def test_the_effect_on_held_out_text(outcome: Outcome) -> None:
    base, pruned, random, scaled = outcome.rows
    assert [row.name for row in outcome.rows] == ["base", "pruned", "random", "scaled"]
    assert base.math_accuracy >= 0.90
    assert pruned.math_accuracy <= base.math_accuracy / 4
    assert pruned.general_loss < 1.05 * base.general_loss
    assert random.math_accuracy >= 0.90 * base.math_accuracy
    assert scaled.factor == 1.1
    assert outcome.verified


def test_the_control_is_as_large_as_the_mask(outcome: Outcome) -> None:
    pruned, random = (
        json.loads((Path(row.checkpoint) / "mathneuro" / "manifest.json").read_text())["tensors"]
        for row in outcome.rows[1:3]
    )
    assert {n: t["count"]["masked"] for n, t in pruned.items()} == {n: t["count"]["masked"] for n, t in random.items()}


def test_json_keys(outcome: Outcome) -> None:
    document = outcome.as_json()
    assert set(document) == {"rows", "verified"}
    keys = {"name", "proportion", "factor", "math_accuracy", "math_loss", "general_loss", "checkpoint"}
    assert all(set(row) == keys for row in document["rows"])


def test_accuracy_is_what_greedy_decoding_gives() -> None:
    """The teacher-forced measure against `generate`, on sums the pruned and the base model differ in."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    for row in rows("math_heldout.jsonl")[:12]:
        ids = tokenizer(row["question"], return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=6, do_sample=False)[0, ids["input_ids"].shape[1] :]
        assert tokenizer.decode(out, skip_special_tokens=True) == " " + row["answer"]


def test_the_checkpoint_has_three_shards_and_is_small() -> None:
    source = open_source(MODEL)
    assert len(source.shards) == 3
    assert source.index is not None
    assert sum(info.numel for _, info in source.tensors.values()) <= 1_500_000
    assert {info.dtype for _, info in source.tensors.values()} == {"BF16"}
    assert {"LICENSE", "README.md", "chat_template.jinja", "tokenizer.json"} <= set(source.carried)


def test_calibration_and_held_out_text_are_disjoint() -> None:
    for kind in ("math", "general"):
        calibration = [json.dumps(row) for row in rows(f"{kind}_calibration.jsonl")]
        held_out = [json.dumps(row) for row in rows(f"{kind}_heldout.jsonl")]
        assert min(len(calibration), len(held_out)) >= 300
        assert not set(calibration) & set(held_out)
    pairs = [
        {frozenset(p for p in row["question"].replace(":", " ").split() if p.isdigit()) for row in rows(name)}
        for name in ("math_calibration.jsonl", "math_heldout.jsonl")
    ]
    assert not pairs[0] & pairs[1]


def test_every_sum_is_right() -> None:
    for name in ("math_calibration.jsonl", "math_heldout.jsonl"):
        for row in rows(name):
            a, b = (int(part) for part in row["question"].replace(":", " ").split() if part.isdigit())
            less = any(word in row["question"] for word in (" - ", "minus", "lost", "gave", "fewer", "away"))
            assert int(row["answer"]) == (a - b if less else a + b), row
