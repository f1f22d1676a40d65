"""The calibration of a job: model and tokenizer loaded, every corpus through them, the statistics file written."""

import os
from math import prod
from pathlib import Path
from typing import Any

from mathneuro_export.calibration.statistics import write_statistics
from mathneuro_export.export.finish import entry
from mathneuro_export.job import Job
from mathneuro_export.models.loading import compute_dtype, load_model, load_tokenizer, resolve_device, tokenizer_digest
from mathneuro_export.talk import Talk

ITEM = {"float32": 4, "float16": 2, "bfloat16": 2}
ACTIVATIONS = 512 << 20
"""Host or device bytes a batch's activations and the libraries' buffers may take beside the weights."""


def calibration_memory(job: Job) -> tuple[int, int]:
    """Upper estimates of host and device bytes: the weights in the compute dtype and a batch's activations."""
    device = resolve_device(job.options.device)
    item = ITEM[compute_dtype(job.options.dtype, job.source, device)]
    weights = sum(prod(info.shape) for _, info in job.source.tensors.values()) * item
    return (weights + ACTIVATIONS, 0) if device == "cpu" else (weights + ACTIVATIONS, weights + ACTIVATIONS)


def calibrate_job(job: Job, path: Path, talk: Talk) -> dict[str, Any]:
    """Calibrate, write the statistics file at `path`, and return the journal's record of it (JSON values).

    The record holds the file's digest, the manifest's `calibration` section and tokenizer digest, the environment's
    part that calibration sets, the names of targets whose input was never seen, and the warnings.

    Raises:
        Error: the model or tokenizer cannot be loaded, or a corpus cannot be run.
    """
    import torch

    from mathneuro_export.calibration.runner import calibrate

    assert job.plan is not None
    options = job.options
    device = resolve_device(options.device)
    dtype = compute_dtype(options.dtype, job.source, device)
    tokenizer = load_tokenizer(job.source)
    talk.say(f"load {job.source.id} in {dtype} on {device}")
    model = load_model(job.source, device, dtype)
    samples = sum(len(corpus.texts) for corpus in job.corpora)
    with talk.bar("calibrate", samples, "sample") as advance:
        calibration = calibrate(
            model,
            job.plan,
            job.corpora,
            tokenizer,
            max_length=options.max_length,
            batch_size=options.batch,
            blocks=options.block_count,
            chat_template=options.chat_template,
            progress=advance,
        )
    axes = {target.name: target.input_axis for target in job.plan.linear}
    head = job.plan.lm_head.name if job.plan.lm_head else None
    digest = write_statistics(path, calibration.statistics, axes, head)
    return {
        "file": entry(digest),
        "calibration": calibration.corpora,
        "tokenizer": tokenizer_digest(job.source),
        "environment": {
            "device": _device_name(device),
            "dtype": dtype,
            "threads": torch.get_num_threads(),
            "kernels": {"attention": str(getattr(model.config, "_attn_implementation", None))},
        },
        "unobserved": [target.name for target in job.plan.linear if target.name not in calibration.observed],
        "notes": [note.as_warning() for note in calibration.notes],
    }


def _device_name(device: str) -> str:
    if device == "cpu":
        return f"cpu ({os.cpu_count()} processors)"
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
