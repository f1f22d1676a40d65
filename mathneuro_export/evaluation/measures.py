"""Teacher-forced measures of a causal language model: loss per token and exact match of answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

BATCH_TOKENS = 8192
"""Padded tokens of a batch at most."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One entry a sample: summed loss in nats, scored tokens, whether every scored token was the most likely one."""

    losses: tuple[float, ...]
    tokens: tuple[int, ...]
    exact: tuple[bool, ...]

    @property
    def loss(self) -> float:
        """Mean loss in nats per scored token."""
        return sum(self.losses) / sum(self.tokens)

    @property
    def accuracy(self) -> float:
        """Share of samples whose scored tokens were all the most likely ones, as greedy decoding would give them."""
        return sum(self.exact) / len(self.exact)


def score(model: Any, tokenizer: Any, samples: Sequence[tuple[str, str]], *, end: bool = False) -> Scores:
    """Score the answer of each (prompt, answer); an empty prompt scores all tokens but the first.

    Args:
        model: a transformers causal language model in eval mode.
        tokenizer: its tokenizer; special tokens are added as it does by itself.
        samples: prompt and answer, joined as they are.
        end: score the end-of-text token after the answer too.
    """
    encoded = [_encode(tokenizer, prompt, answer, end) for prompt, answer in samples]
    order = sorted(range(len(encoded)), key=lambda i: (len(encoded[i][0]), i))
    losses, tokens, exact = [0.0] * len(encoded), [0] * len(encoded), [False] * len(encoded)
    for batch in _batches(order, [len(ids) for ids, _ in encoded]):
        for i, result in zip(batch, _score_batch(model, [encoded[i] for i in batch]), strict=True):
            losses[i], tokens[i], exact[i] = result
    return Scores(tuple(losses), tuple(tokens), tuple(exact))


def _encode(tokenizer: Any, prompt: str, answer: str, end: bool) -> tuple[list[int], int]:
    """Token ids and the number of them that are not scored."""
    ids = list(tokenizer(prompt + answer)["input_ids"])
    skip = len(tokenizer(prompt)["input_ids"]) if prompt else 1
    return ids + ([tokenizer.eos_token_id] if end else []), max(skip, 1)


def _batches(order: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    batches: list[list[int]] = []
    for i in order:
        if batches and (len(batches[-1]) + 1) * lengths[i] <= BATCH_TOKENS:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


@torch.inference_mode()
def _score_batch(model: Any, batch: Sequence[tuple[list[int], int]]) -> list[tuple[float, int, bool]]:
    width = max(len(ids) for ids, _ in batch)
    inputs = torch.zeros(len(batch), width, dtype=torch.long)
    mask = torch.zeros(len(batch), width, dtype=torch.long)
    for row, (ids, _) in enumerate(batch):
        inputs[row, : len(ids)] = torch.tensor(ids)
        mask[row, : len(ids)] = 1
    logits = model(input_ids=inputs.to(model.device), attention_mask=mask.to(model.device), use_cache=False).logits
    results = []
    for row, (ids, skip) in enumerate(batch):
        scored = logits[row, skip - 1 : len(ids) - 1].float()
        wanted = torch.tensor(ids[skip:], device=scored.device)
        loss = torch.nn.functional.cross_entropy(scored, wanted, reduction="sum")
        results.append((float(loss), len(wanted), bool((scored.argmax(-1) == wanted).all())))
    return results
