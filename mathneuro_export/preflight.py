"""What a calibration takes: in memory or layer by layer, how much of host, device and disk; from headers and texts."""

from dataclasses import dataclass
from math import prod
from typing import Any

from mathneuro_export.calibration.batches import encode, make_batches
from mathneuro_export.errors import ResourceError, UsageError
from mathneuro_export.job import Job
from mathneuro_export.models import memory
from mathneuro_export.models.loading import compute_dtype, load_tokenizer, resolve_device

ITEM = {"float32": 4, "float16": 2, "bfloat16": 2}
ACTIVATIONS = 512 << 20
"""Host or device bytes a batch's activations and the libraries' buffers may take beside the weights."""
ANY_TOKEN = 1 << 62


@dataclass(frozen=True, slots=True)
class Needs:
    """Upper estimates in bytes. `budget` is what hidden states may take of the host before they go to disk."""

    streamed: bool
    host: int
    device: int
    disk: int = 0
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Corpora:
    """Of each corpus the tokens, and of all the tokens with pads."""

    tokens: dict[str, int]
    padded: int


def count_tokens(job: Job) -> Corpora:
    """Tokenise the job's corpora as the calibration will. Errors: those of `encode`."""
    tokenizer, options = load_tokenizer(job.source), job.options
    tokens, padded = {}, 0
    for corpus in job.corpora:
        encoded = encode(corpus, tokenizer, options.max_length, options.chat_template, ANY_TOKEN)
        tokens[corpus.name] = encoded.tokens
        padded += sum(len(batch.samples) * batch.padded for batch in make_batches(encoded.ids, options.batch))
    return Corpora(tokens, padded)


def needs(job: Job) -> Needs:
    """What the job's calibration takes, and whether it is streamed.

    Errors: `UsageError` for a model that cannot be streamed although it must be; `ResourceError` where `--max-memory`
    does not hold two layers and the embeddings.
    """
    options = job.options
    device = resolve_device(options.device)
    item = ITEM[compute_dtype(options.dtype, job.source, device)]
    weights = sum(prod(info.shape) for _, info in job.source.tensors.values()) * item
    whole = weights + ACTIVATIONS
    in_memory = Needs(False, whole, 0 if device == "cpu" else whole)
    limit = min(memory.available_memory(), options.memory_limit or memory.available_memory())
    fits = in_memory.host <= limit and in_memory.device <= memory.device_memory(device)
    if options.stream == "never" and options.memory_limit is not None and weights > options.memory_limit:
        raise ResourceError(
            f"--max-memory {options.max_memory}: the model in memory takes {weights} bytes; use --stream always"
        )
    if options.stream == "never" or (options.stream == "auto" and fits):
        return in_memory
    assert job.plan is not None
    if job.plan.sizes is None:
        if options.stream == "always":
            raise UsageError(f"--stream always: {job.source.architecture} has no list of decoder layers; leave it out")
        return in_memory
    return _streamed(job, item, device)


def _streamed(job: Job, item: int, device: str) -> Needs:
    assert job.plan is not None
    assert job.plan.sizes is not None
    sizes = job.plan.sizes
    weights = (sum(sorted(sizes.layers)[-2:]) + sizes.rest) * item
    hidden = count_tokens(job).padded * sizes.hidden * item
    limit = job.options.memory_limit
    budget = None
    if limit is not None:
        budget = limit - weights
        if budget < 0:
            raise ResourceError(
                f"--max-memory {job.options.max_memory}: two decoder layers and the embeddings take {weights} bytes; "
                "give at least that, or --dtype bfloat16"
            )
    held = hidden if budget is None else min(hidden, budget)
    on_device = 0 if device == "cpu" else weights + ACTIVATIONS
    return Needs(True, weights + held + ACTIVATIONS, on_device, 3 * hidden, budget)


def facts(job: Job, need: Needs) -> dict[str, Any]:
    """What the dry run tells of the model (see `api.Plan`)."""
    sizes = job.plan.sizes if job.plan else None
    if sizes is None:
        return {"streamed": need.streamed}
    found: dict[str, Any] = {
        "streamed": need.streamed,
        "layers": len(sizes.layers),
        "ties": [list(pair) for pair in sizes.ties],
        "experts": sizes.experts,
        "experts_per_token": sizes.experts_per_token,
        "expert_tokens": {},
    }
    if sizes.experts and sizes.experts_per_token:
        share = sizes.experts_per_token / sizes.experts
        found["expert_tokens"] = {name: int(tokens * share) for name, tokens in count_tokens(job).tokens.items()}
    return found


def check_memory(job: Job, need: Needs) -> None:
    """Refuse what does not fit. Errors: `ResourceError` naming the option that would make it fit."""
    free, device = memory.available_memory(), resolve_device(job.options.device)
    if need.host <= free and need.device <= memory.device_memory(device):
        return
    where, wanted, there = ("memory", need.host, free)
    if need.host <= free:
        where, wanted, there = ("device memory", need.device, memory.device_memory(device))
    raise ResourceError(
        f"{job.source.id}: needs about {wanted} bytes of {where}, {there} are available; try {_remedy(job, need, free)}"
    )


def _remedy(job: Job, need: Needs, free: int) -> str:
    if not need.streamed and job.plan is not None and job.plan.sizes is not None:
        return "--stream always"
    if need.streamed and need.budget is None:
        sizes = job.plan.sizes if job.plan else None
        item = ITEM[compute_dtype(job.options.dtype, job.source, resolve_device(job.options.device))]
        least = (sum(sorted(sizes.layers)[-2:]) + sizes.rest) * item if sizes else free
        if least + ACTIVATIONS < free:
            return f"--max-memory {(free - ACTIVATIONS) >> 20}MiB, which leaves the rest of the hidden states on disk"
    return "--dtype bfloat16, a smaller --batch-size or --max-length, or a larger machine"
