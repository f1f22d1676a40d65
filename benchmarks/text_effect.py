"""Do masks from the bundled text act on real math? Answer loss on GSM8K after pruning, by the text calibrated on.

    python benchmarks/text_effect.py MODEL DATA        # DATA holds gsm8k_train, gsm8k_test and mmlu_dev as .jsonl

Prunes MODEL at proportion 0.001 with masks from GSM8K against MMLU and with masks from builtin:math against
builtin:general (48 samples each, seed 42, at most 256 tokens), and prints the mean loss (nats per token) on the answers
of the first 60 rows of gsm8k_test, and the share of the first rise that the second reaches.
"""

import argparse
import json
import tempfile
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mathneuro_export import api
from mathneuro_export.evaluation.measures import score

NOT_GENERAL = ("math", "algebra", "statistics")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--proportion", type=float, default=0.001)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with (arguments.data / "gsm8k_test.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, 60)]
    answers = [(row["question"] + "\n", row["answer"]) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        general = Path(folder) / "mmlu.jsonl"
        with (arguments.data / "mmlu_dev.jsonl").open(encoding="utf-8") as lines:
            kept = [line for line in lines if not any(word in json.loads(line)["subject"] for word in NOT_GENERAL)]
        general.write_text("".join(kept), encoding="utf-8")
        corpora = {
            "gsm8k": (
                f"{arguments.data / 'gsm8k_train.jsonl'}:{{question}}\\n{{answer}}",
                f"{general}:{{question}}\\n{{rationale}}",
            ),
            "builtin": ("builtin:math", "builtin:general"),
        }
        base = loss(arguments.model, answers)
        print(f"base      {base:.4f}")
        rises = {}
        for name, (math, other) in corpora.items():
            out = Path(folder) / name
            result = api.prune(
                arguments.model,
                out,
                math=math,
                general=other,
                num_samples=48,
                max_length=256,
                proportion=arguments.proportion,
            )
            rises[name] = loss(out, answers) - base
            print(f"{name:<9} {base + rises[name]:.4f}  rise {rises[name]:.4f}  {result.masked} weights", flush=True)
    print(f"builtin / gsm8k rise: {rises['builtin'] / rises['gsm8k']:.3f}")


def loss(checkpoint: Path, answers: list[tuple[str, str]]) -> float:
    """Mean loss in nats per answer token, computed in float32."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    return score(model, AutoTokenizer.from_pretrained(checkpoint), answers).loss


if __name__ == "__main__":
    main()
