"""The calibration of a job: model and tokenizer loaded, every corpus through them, the statistics file written."""

import os
import sys
from pathlib import Path
from typing import Any

from mathneuro_export.calibration.statistics import write_statistics
from mathneuro_export.checkpoint.journal import Journal
from mathneuro_export.checkpoint.source import Source
from mathneuro_export.export.finish import entry
from mathneuro_export.job import Job
from mathneuro_export.models.loading import compute_dtype, load_model, load_tokenizer, resolve_device, tokenizer_digest
from mathneuro_export.models.memory import device_memory
from mathneuro_export.models.names import load_config
from mathneuro_export.preflight import ACTIVATIONS, needs
from mathneuro_export.talk import Talk


def calibrate_job(job: Job, path: Path, talk: Talk, journal: Journal, work: Path) -> dict[str, Any]:
    """Calibrate, write the statistics file at `path`, and return the journal's record of it (JSON values).

    The record holds the file's digest, the manifest's `calibration` section and tokenizer digest, the environment's
    part that calibration sets, the names of targets whose input was never seen, and the warnings. What a streamed
    calibration has done is kept in `work` and `journal`.

    Raises:
        Error: the model or tokenizer cannot be loaded, or a corpus cannot be run.
    """
    import torch

    from mathneuro_export.calibration.parking import Parking
    from mathneuro_export.calibration.resume import Checkpoints
    from mathneuro_export.calibration.runner import calibrate
    from mathneuro_export.calibration.stream import calibrate_streamed
    from mathneuro_export.models.streaming import stream_model

    assert job.plan is not None
    options, need = job.options, needs(job)
    device = resolve_device(options.device)
    dtype = compute_dtype(options.dtype, job.source, device)
    tokenizer = load_tokenizer(job.source)
    samples = sum(len(corpus.texts) for corpus in job.corpora)
    settings: dict[str, Any] = {
        "max_length": min(options.max_length, positions(job.source)),
        "batch_size": options.batch,
        "blocks": options.block_count,
        "chat_template": options.chat_template,
    }
    if need.streamed:
        talk.say(f"load {job.source.id} layer by layer in {dtype} on {device}")
        streamed = stream_model(job.source, device, dtype)
        model = streamed.model
        on_device = max(0, device_memory(device) - need.device - ACTIVATIONS) if device != "cpu" else 0
        parking = Parking(need.budget, work, on_device)
        checkpoints = Checkpoints(journal, work, talk.say)
        with talk.bar("calibrate", samples * len(streamed.layers), "sample") as advance:
            calibration = calibrate_streamed(
                streamed,
                job.plan,
                job.corpora,
                tokenizer,
                **settings,
                progress=advance,
                parking=parking,
                checkpoints=checkpoints,
            )
    else:
        talk.say(f"load {job.source.id} in {dtype} on {device}")
        model = load_model(job.source, device, dtype)
        with talk.bar("calibrate", samples, "sample") as advance:
            calibration = calibrate(model, job.plan, job.corpora, tokenizer, **settings, progress=advance)
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
            "streamed": need.streamed,
            "threads": torch.get_num_threads(),
            "kernels": {"attention": str(getattr(model.config, "_attn_implementation", None))},
        },
        "unobserved": [target.name for target in job.plan.linear if target.name not in calibration.observed],
        "notes": [note.as_warning() for note in calibration.notes],
    }


def positions(source: Source) -> int:
    """The longest sample the model has positions for, as its config says; tokens beyond would have none."""
    config = load_config(source).get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else sys.maxsize


def _device_name(device: str) -> str:
    if device == "cpu":
        return f"cpu ({os.cpu_count()} processors)"
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
