"""Make the bundled demo: generate its text, train its tokenizer and model from scratch, and measure what it shows.

    OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive python recipes/demo_model.py --out mathneuro_export/demo

writes into `--out` the four text files and `model/` (a Llama of under a million parameters in three shards), then
prints the table of the model card. `--measure` only prints the table for what `--out` already holds. All draws are
seeded; the weights also depend on the number of threads, on the torch build and, where `--minutes` ends the training,
on the clock.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from demo_text import LIMIT, ROWS, Sum, make_story, operands, read_stories, read_sums, training_sum, write_text
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

END, PAD = "<|end|>", "<|pad|>"
VOCABULARY = 768
HIDDEN, LAYERS, HEADS, INTERMEDIATE = 128, 4, 4, 256
STORY_POOL = 10_000
SUMS_PER_STEP, STORIES_PER_STEP = 64, 8
STORY_EVERY = 3  # steps
EASY_SHARE = 0.5  # of the training, from its start, in which second operands have one digit
QUESTION_WEIGHT = 0.1  # of the loss of a question's tokens; an answer's tokens weigh 1
SHARDS = 3
DEMO_P = 0.05
RANDOM_SEEDS = (0, 1, 2)
PROPORTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if not loop.last or add_generation_prompt %}{{ ' ' }}{% endif %}{% endfor %}"
)

Sample = tuple[list[int], int]  # token ids, and how many of them are the question's
Statistic = dict[str, torch.Tensor]
Mask = dict[str, torch.Tensor]


# ----------------------------------------------------------------------------------------------- tokenizer


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with one token per digit; a text's tokens have nothing put before or after them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, model_max_length=256, padding_side="left"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


class Encoder:
    """Turns sums and stories into samples."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.end: int = tokenizer.convert_tokens_to_ids(END)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text."""
        return [list(ids) for ids in self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    def sums(self, sums: Sequence[Sum], end: bool = True) -> list[Sample]:
        """The samples of sums, with the end token if `end`."""
        questions, texts = self.ids([s.question for s in sums]), self.ids([s.text for s in sums])
        return [(t + [self.end] * end, len(q)) for q, t in zip(questions, texts, strict=True)]

    def stories(self, stories: Sequence[str], end: bool = True) -> list[Sample]:
        """The samples of stories, with the end token if `end`; their question is empty."""
        return [(t + [self.end] * end, 0) for t in self.ids(stories)]


# ------------------------------------------------------------------------------------------------------- training


def batch(samples: Sequence[Sample], question_weight: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, targets and the weights of the targets' losses; pads come last, where causal attention hides them."""
    width = max(len(ids) for ids, _ in samples)
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    weight = torch.zeros(len(samples), width)
    for row, (tokens, question) in enumerate(samples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weight[row, : len(tokens)] = 1.0
        weight[row, :question] = question_weight
    return ids[:, :-1], ids[:, 1:], weight[:, 1:]


def loss_of(model: LlamaForCausalLM, samples: Sequence[Sample]) -> torch.Tensor:
    """The weighted mean loss of the samples' tokens."""
    inputs, targets, weight = batch(samples, QUESTION_WEIGHT)
    keep = weight > 0
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state[keep]
    losses = F.cross_entropy(model.lm_head(hidden), targets[keep], reduction="none")
    return (losses * weight[keep]).sum() / weight.sum()


def optimizer_of(model: LlamaForCausalLM, rate: float) -> torch.optim.Optimizer:
    """AdamW, with weight decay on the matrices only."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99), fused=True)


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """An untrained model for the tokenizer, in float32."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def train(model: LlamaForCausalLM, encoder: Encoder, out: Path, args: argparse.Namespace) -> dict[str, float]:
    """Train for `args.steps` steps, or as many as `args.minutes` allow; returns the minutes and the tokens seen."""
    rng = random.Random(args.seed + 1)
    excluded = {operands(s.question) for s in read_sums(out / "math_heldout.jsonl")}
    seen_later = {text for name in ("calibration", "heldout") for text in read_stories(out / f"general_{name}.jsonl")}
    pool = encoder.stories([t for t in (make_story(rng) for _ in range(STORY_POOL)) if t not in seen_later])
    probe_sums = encoder.sums(read_sums(out / "math_heldout.jsonl"))
    probe_stories = encoder.stories(read_stories(out / "general_heldout.jsonl"))
    optimizer = optimizer_of(model, args.rate)
    start, tokens, step, progress = time.monotonic(), 0, 0, 0.0
    while progress < 1:
        warm = min(1.0, (step + 1) / 100)
        for group in optimizer.param_groups:
            group["lr"] = args.rate * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
        limit = 10 if progress < EASY_SHARE else LIMIT
        parts = [encoder.sums([training_sum(rng, excluded, limit) for _ in range(SUMS_PER_STEP)])]
        if step % STORY_EVERY == 0:
            parts.append(rng.sample(pool, STORIES_PER_STEP))
        for part in parts:
            torch.autograd.backward(loss_of(model, part))
            tokens += sum(len(ids) for ids, _ in part)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        minutes = (time.monotonic() - start) / 60
        progress = max(step / args.steps, minutes / args.minutes)
        if step % args.report == 0 or progress >= 1:
            accuracy, math_loss = evaluate(model, probe_sums)
            print(
                f"step {step} {minutes:.1f} min {tokens / minutes / 60:.0f} tok/s: accuracy {accuracy:.3f}, "
                f"math loss {math_loss:.3f}, general loss {evaluate(model, probe_stories)[1]:.4f}",
                flush=True,
            )
    return {"minutes": minutes, "tokens": tokens, "steps": step, "seed": args.seed}


# ---------------------------------------------------------------------------------------------------- measurement


def same_length(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples in batches without padding."""
    groups: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[len(sample[0])].append(sample)
    return [group[i : i + 64] for group in groups.values() for i in range(0, len(group), 64)]


@torch.no_grad()
def evaluate(model: LlamaForCausalLM, samples: Sequence[Sample]) -> tuple[float, float]:
    """The share of samples whose every answer token is the argmax, and the mean loss of the answers' tokens."""
    exact, loss, count = 0, 0.0, 0
    for part in same_length(samples):
        inputs, targets, weight = batch(part, 0.0)
        logits = model(input_ids=inputs, use_cache=False).logits
        keep = weight > 0
        exact += int(((logits.argmax(-1) == targets) | ~keep).all(1).sum())
        loss += float(F.cross_entropy(logits[keep], targets[keep], reduction="sum"))
        count += int(keep.sum())
    return exact / len(samples), loss / count


def targets_of(model: LlamaForCausalLM) -> dict[str, torch.nn.Linear]:
    """The linear maps of the decoder layers, by name."""
    return {n: m for n, m in model.model.layers.named_modules() if isinstance(m, torch.nn.Linear)}


@torch.no_grad()
def statistic(model: LlamaForCausalLM, samples: Sequence[Sample]) -> Statistic:
    """a_j of every linear map: the sum over samples of the norm, over the sample's tokens, of input feature j."""
    total: Statistic = {}

    def hook(name: str) -> Any:
        def add(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            total[name] = total.get(name, 0) + torch.linalg.vector_norm(inputs[0], dim=1).double().sum(0)

        return add

    handles = [m.register_forward_pre_hook(hook(n)) for n, m in targets_of(model).items()]
    for part in same_length(samples):
        model(input_ids=torch.tensor([ids for ids, _ in part]), use_cache=False)
    for handle in handles:
        handle.remove()
    return {name: a.float() for name, a in total.items()}


def top(weight: torch.Tensor, a: torch.Tensor, p: float) -> torch.Tensor:
    """The int(p * numel) largest scores |W_ij| a_j, as a flat mask; equal scores: the lower flat index first."""
    order = (weight.abs() * a).flatten().argsort(descending=True, stable=True)
    mask = torch.zeros(weight.numel(), dtype=torch.bool)
    mask[order[: int(p * weight.numel())]] = True
    return mask


def math_specific(model: LlamaForCausalLM, math_a: Statistic, general_a: Statistic, p: float) -> Mask:
    """top(math) minus top(general) of every linear map."""
    return {
        n: top(m.weight.data, math_a[n], p) & ~top(m.weight.data, general_a[n], p) for n, m in targets_of(model).items()
    }


def random_mask(mask: Mask, seed: int) -> Mask:
    """As many weights per tensor as `mask` has, drawn uniformly."""
    generator, drawn = torch.Generator().manual_seed(seed), {}
    for name, chosen in mask.items():
        drawn[name] = torch.zeros_like(chosen)
        drawn[name][torch.randperm(chosen.numel(), generator=generator)[: int(chosen.sum())]] = True
    return drawn


@torch.no_grad()
def edited(
    model: LlamaForCausalLM, mask: Mask, factor: float, *evaluated: Sequence[Sample]
) -> list[tuple[float, float]]:
    """`evaluate` of each sample list, with the masked weights times the factor, rounded to bfloat16."""
    modules = targets_of(model)
    saved = {n: m.weight.data.clone() for n, m in modules.items()}
    for name, chosen in mask.items():
        flat = modules[name].weight.data.view(-1)
        flat[chosen] = (flat[chosen] * factor).bfloat16().float()
    results = [evaluate(model, samples) for samples in evaluated]
    for name, module in modules.items():
        module.weight.data.copy_(saved[name])
    return results


def measure(out: Path, proportions: Sequence[float], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """What the saved model shows at each proportion; the first row is the unedited model."""
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    model = LlamaForCausalLM.from_pretrained(out / "model", dtype=torch.float32).eval()
    encoder = Encoder(tokenizer)
    sums = encoder.sums(read_sums(out / "math_heldout.jsonl"))
    stories = encoder.stories(read_stories(out / "general_heldout.jsonl"))
    math_a = statistic(model, encoder.sums(read_sums(out / "math_calibration.jsonl"), end=False))
    general_a = statistic(model, encoder.stories(read_stories(out / "general_calibration.jsonl"), end=False))

    def row(p: float, arm: str, mask: Mask, factor: float) -> dict[str, Any]:
        (accuracy, math_loss), (_, general_loss) = edited(model, mask, factor, sums, stories)
        weights = sum(int(chosen.sum()) for chosen in mask.values())
        scores = {"accuracy": accuracy, "math_loss": math_loss, "general_loss": general_loss}
        return {"p": p, "arm": arm, "weights": weights, **scores}

    rows = [row(0.0, "base", {}, 1.0)]
    for p in proportions:
        mask = math_specific(model, math_a, general_a, p)
        rows.append(row(p, "pruned", mask, 0.0))
        rows.extend(row(p, f"random {seed}", random_mask(mask, seed), 0.0) for seed in seeds)
        rows.append(row(p, "scaled x1.1", mask, 1.1))
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    lines = ["| p | weights edited | arm | exact match | math loss | general loss |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {r['p']:g} | {r['weights']} | {r['arm']} | {r['accuracy']:.3f} | {r['math_loss']:.4f} "
        f"| {r['general_loss']:.4f} |"
        for r in rows
    ]
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------------- output


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model in bfloat16 and three shards, with its tokenizer and generation settings."""
    folder.mkdir(parents=True, exist_ok=True)
    model = model.bfloat16()
    model.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=64, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    for share in (0.36, 0.38, 0.4, 0.42, 0.45):
        for old in folder.glob("model*.safetensors*"):
            old.unlink()
        model.save_pretrained(folder, max_shard_size=int(size * share))
        if len(list(folder.glob("*.safetensors"))) == SHARDS:
            break
    else:
        raise SystemExit(f"no shard size gives {SHARDS} shards")
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # shards are written readable by their owner only


def write_card(out: Path, trained: dict[str, float], rows: Sequence[dict[str, Any]]) -> None:
    """Write the model card, from its template beside this script, and the license."""
    card = (Path(__file__).parent / "demo_card.md").read_text(encoding="utf-8")
    values = {
        "PARAMETERS": f"{sum(t.numel() for t in load_tensors(out / 'model')):,}",
        "STEPS": f"{trained['steps']:,.0f}",
        "TOKENS": f"{trained['tokens'] / 1e6:.1f}",
        "MINUTES": f"{trained['minutes']:.0f}",
        "ROWS": str(ROWS),
        "SEED": str(trained["seed"]),
        "SHAPE": f"{LAYERS} layers, {HIDDEN} wide, {HEADS} heads, {INTERMEDIATE} inside the MLP",
        "P": f"{DEMO_P:g}",
        "TABLE": table(rows),
    }
    for key, value in values.items():
        card = card.replace("{" + key + "}", value)
    (out / "model" / "README.md").write_text(card, encoding="utf-8")
    repository = Path(__file__).parent.parent
    (out / "model" / "LICENSE").write_text((repository / "LICENSE").read_text(encoding="utf-8"), encoding="utf-8")


def load_tensors(folder: Path) -> list[torch.Tensor]:
    """All tensors of a folder's shards."""
    return [tensor for file in sorted(folder.glob("*.safetensors")) for tensor in load_file(file).values()]


def main() -> None:
    """Make the demo, or measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the text files and of model/")
    parser.add_argument("--steps", type=int, default=4200, help="training steps [4200]")
    parser.add_argument("--minutes", type=float, default=30, help="stop training by then, at a lower accuracy [30]")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate [0.002]")
    parser.add_argument("--seed", type=int, default=0, help="seed of text, weights and training [0]")
    parser.add_argument("--report", type=int, default=250, help="steps between two progress lines [250]")
    parser.add_argument("--measure", action="store_true", help="only measure what --out holds, and print the table")
    args = parser.parse_args()
    if args.measure:
        print(table(measure(args.out, PROPORTIONS, RANDOM_SEEDS)))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    write_text(args.out, args.seed)
    rng = random.Random(args.seed + 2)
    stories = [make_story(rng) for _ in range(3000)]
    excluded = {operands(s.question) for s in read_sums(args.out / "math_heldout.jsonl")}
    tokenizer = train_tokenizer([*stories, *(training_sum(rng, excluded).text for _ in range(3000))])
    torch.manual_seed(args.seed)
    model = new_model(tokenizer)
    trained = train(model, Encoder(tokenizer), args.out, args)
    save(model, tokenizer, args.out / "model")
    rows = measure(args.out, PROPORTIONS, RANDOM_SEEDS)
    print(table(rows))
    write_card(args.out, trained, rows)


if __name__ == "__main__":
    main()
