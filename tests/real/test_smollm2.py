"""A checkpoint that nobody here made.

`recipes/smollm2.py` makes it; MATHNEURO_REAL_MODEL names its folder and MATHNEURO_REAL_DATA one with the rows.
"""

import json
import os
from pathlib import Path

import pytest

import mathneuro_export

pytestmark = pytest.mark.real
TEMPLATES = ("gsm8k_train.jsonl:{question}\\n{answer}", "mmlu_dev.jsonl:{question}\\n{rationale}")


@pytest.fixture(scope="module")
def model() -> Path:
    return _folder("MATHNEURO_REAL_MODEL", "config.json")


@pytest.fixture(scope="module")
def data() -> Path:
    return _folder("MATHNEURO_REAL_DATA", "gsm8k_train.jsonl")


def _folder(variable: str, file: str) -> Path:
    folder = Path(os.environ.get(variable, ""))
    if not os.environ.get(variable) or not (folder / file).is_file():
        pytest.skip(f"{variable} names no folder with {file}")
    return folder


def test_scale_verify_load_generate(model: Path, data: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    math, general = (f"{data}/{template}" for template in TEMPLATES)
    out = tmp_path / "out"
    result = mathneuro_export.scale(model, out, math=math, general=general, num_samples=48, max_length=256)
    print(json.dumps(result.as_json()))
    assert result.targets == 30 * 7
    assert 0 < result.changed == result.masked

    report = mathneuro_export.verify(out, model)
    assert report.ok, report.problems
    assert report.elements_checked == 134_515_008

    tokenizer = AutoTokenizer.from_pretrained(out)
    edited = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    ids = tokenizer("The capital of France is", return_tensors="pt")
    text = tokenizer.decode(edited.generate(**ids, max_new_tokens=8, do_sample=False)[0])
    assert "Paris" in text
