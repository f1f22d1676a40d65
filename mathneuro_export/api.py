"""The verbs in Python: `identify`, `scale`, `prune`, `apply`, and the `plan` that `--dry-run` prints.

checkpoint -> targets -> calibration, or a RUN -> masks -> edited shards -> manifest -> config.json
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mathneuro_export.errors import UsageError
from mathneuro_export.export.counts import total
from mathneuro_export.job import Job, kinds, prepare, prepare_apply
from mathneuro_export.options import build_options
from mathneuro_export.produce import costs, layout_of, produce
from mathneuro_export.talk import Talk

if TYPE_CHECKING:
    from mathneuro_export.export.push import Pushed

SILENT = Talk()


@dataclass(frozen=True, slots=True)
class Result:
    """What a verb made: `changed` counts weights whose bytes differ after rounding (None where nothing was edited)."""

    output: Path
    manifest: Path
    targets: int
    masked: int
    changed: int | None
    seconds: float
    warnings: list[dict[str, Any]]
    pushed: "Pushed | None" = None

    def as_json(self) -> dict[str, Any]:
        """The result as `--json` prints it; `pushed` is there where it was asked for."""
        values = {**asdict(self), "output": str(self.output), "manifest": str(self.manifest)}
        pushed = values.pop("pushed")
        return values if pushed is None else {**values, "pushed": pushed}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a job would do: `targets` by kind of module, `skipped` by reason; bytes.

    `model`: what calibration meets, empty with a RUN: decoder `layers`, `ties` (pairs of parameters), `experts`,
    `experts_per_token`, `expert_tokens` (corpus -> the tokens each expert is to expect), `streamed`.
    """

    targets: dict[str, dict[str, int]]
    skipped: dict[str, list[str]]
    bytes_read: int
    bytes_written: int
    peak_host_bytes: int
    peak_device_bytes: int
    model: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The plan as `--dry-run --json` prints it."""
        return asdict(self)


def identify(model: str | Path, output: str | Path, *, talk: Talk = SILENT, **options: Any) -> Result:
    """Calibrate and select: write a RUN of statistics, masks and manifest; no checkpoint.

    Args:
        model: folder of a Hugging Face checkpoint, or `org/name[@revision]` on the Hub.
        output: folder of the RUN.
        talk: what is said on stderr; nothing by default.
        options: fields of `Options`, spelled as on the command line with underscores (`num_samples=100`).

    Raises:
        UsageError: an option or the output folder is refused before any work.
        ResourceError: not enough memory or disk.
        Error: a bad model, corpus or RUN.
    """
    return carry_out(job_of("identify", model, options, talk=talk), output, talk)


def scale(model: str | Path, output: str | Path, *, talk: Talk = SILENT, **options: Any) -> Result:
    """Identify (or reuse a RUN with `from_run`), then write the checkpoint with the masked weights times `factor`.

    Arguments and errors are those of `identify`.
    """
    return carry_out(job_of("scale", model, options, talk=talk), output, talk)


def prune(model: str | Path, output: str | Path, *, talk: Talk = SILENT, **options: Any) -> Result:
    """`scale` with factor 0."""
    return carry_out(job_of("prune", model, options, talk=talk), output, talk)


def apply(run: str | Path, model: str | Path, output: str | Path, *, talk: Talk = SILENT, **options: Any) -> Result:
    """Put the stored masks of a RUN on a checkpoint of the same names and shapes: its source or another version of it.

    Arguments and errors are those of `identify`; `factor` must be given, and no forward pass is made.
    """
    return carry_out(job_of("apply", model, options, run, talk=talk), output, talk)


def plan(verb: str, model: str | Path, *, run: str | Path | None = None, **options: Any) -> Plan:
    """What a verb would do, from headers, index and config alone: no weight is read and nothing is written.

    Args:
        verb: `identify`, `scale`, `prune` or `apply`; the latter wants `run`.
    """
    return plan_of(job_of(verb, model, options, run, weights=False))


def job_of(
    verb: str,
    model: str | Path,
    options: dict[str, Any],
    run: str | Path | None = None,
    *,
    weights: bool = True,
    talk: Talk = SILENT,
) -> Job:
    """The checked job of a verb and its options; without `weights`, none is fetched of a MODEL on the Hub."""
    chosen = build_options(verb, options)
    if run is None:
        return prepare(verb, model, chosen, weights=weights, talk=talk)
    return prepare_apply(run, model, chosen, weights=weights, talk=talk)


def plan_of(job: Job) -> Plan:
    """The plan of a job."""
    skipped = {reason: sorted(names) for reason, names in job.skipped.items()}
    if job.run is not None:
        return Plan(kinds(job.targets), skipped, **asdict(costs(job)), model={})
    from mathneuro_export.preflight import facts, needs

    need = needs(job)
    return Plan(kinds(job.targets), skipped, **asdict(costs(job, need)), model=facts(job, need))


def carry_out(job: Job, output: str | Path, talk: Talk) -> Result:
    """Produce what a job describes in the folder `output`."""
    started = time.monotonic()
    if not str(output):
        raise UsageError("the output folder has an empty name; give the folder to write")
    folder = Path(output)
    destination = None
    if job.options.push_to_hub is not None:
        from mathneuro_export.export.push import preflight, push_output

        destination = preflight(job.options.push_to_hub, private=job.options.private, talk=talk)
    document = produce(job, folder, talk)
    counts = [tensor["count"] for tensor in document["tensors"].values()]
    result = Result(
        output=folder,
        manifest=folder / layout_of(job).manifest,
        targets=len(counts),
        masked=sum(total(count["masked"]) for count in counts),
        changed=None if job.edit is None else sum(total(count["changed"]) for count in counts),
        seconds=time.monotonic() - started,
        warnings=document["warnings"],
    )
    return result if destination is None else replace(result, pushed=push_output(folder, destination, talk=talk))
