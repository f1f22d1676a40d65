"""From a checked job to a finished RUN or OUT: statistics, masks, edited shards, manifest, marker; all journaled."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mathneuro_export.basis import not_the_source
from mathneuro_export.calibration.statistics import StatisticsFile
from mathneuro_export.checkpoint.durable import Digest, copy_file, make_folder, remove_temporaries, require_space
from mathneuro_export.checkpoint.journal import Journal
from mathneuro_export.checkpoint.output import check_output
from mathneuro_export.checkpoint.rewrite import digest_file
from mathneuro_export.errors import Error, ResourceError
from mathneuro_export.export import counts
from mathneuro_export.export.finish import Facts, entry, environment, planned_files, write_output, write_run
from mathneuro_export.export.manifest import read_document
from mathneuro_export.export.shards import MaskMaker, Rule, assemble_masks, matching, pass_shards, selecting, stored
from mathneuro_export.export.work import OUT, RUN, WORK, Layout, begin, is_finished, working
from mathneuro_export.job import Job, fingerprint
from mathneuro_export.masks.maskfile import MaskFile
from mathneuro_export.models.targets import NOT_OBSERVED
from mathneuro_export.talk import Talk

if TYPE_CHECKING:
    from mathneuro_export.preflight import Needs


def layout_of(job: Job) -> Layout:
    """A RUN where nothing is edited, else an OUT."""
    return RUN if job.edit is None else OUT


@dataclass(frozen=True, slots=True)
class Costs:
    """What a job takes, from headers and options alone; bytes."""

    bytes_read: int
    bytes_written: int
    peak_host_bytes: int
    peak_device_bytes: int


def costs(job: Job, need: "Needs | None" = None) -> Costs:
    """Bytes read and written, and an upper estimate of the memory taken; `need` is the calibration's, if known."""
    weights = sum(header.file_size for header in job.source.shards.values())
    others = sum(job.source.sizes[name] for name in job.source.carried)
    selected = sum(prod(target.shape) for target in job.targets)
    rows = sum(prod(target.shape[:-1]) for target in job.targets)
    masks = int(selected * job.selection["proportion"]) * 2 + 8 * rows
    written = 2 * masks + (weights + others if job.edit else 0) + (8 << 20)
    largest = max((info.nbytes for _, info in job.source.tensors.values()), default=0)
    if job.run is not None:
        return Costs(weights, written, largest + (300 << 20), 0)
    from mathneuro_export.preflight import needs

    need = need or needs(job)
    return Costs(2 * weights, written + need.disk, max(need.host, largest + (300 << 20)), need.device)


def produce(job: Job, folder: Path, talk: Talk) -> dict[str, Any]:
    """Carry a job out and return the manifest document of what stands in `folder`.

    A failure that another try cannot mend leaves nothing behind; an interruption leaves a journal to go on from.

    Raises:
        UsageError: the folder is refused. ResourceError: not enough disk or memory. Error: see `Job` and the message.
    """
    layout = layout_of(job)
    if job.run is not None:
        check_output(folder, job.run.folder, "the RUN that is read")
    found = fingerprint(job)
    journal = begin(
        folder,
        layout,
        found,
        planned_files(job.source, layout),
        source=job.source.folder,
        before=lambda freed: _require(job, folder, freed),
        resume=job.options.resume,
        overwrite=job.options.overwrite,
    )
    with working(folder, journal):
        if not is_finished(folder, layout, journal):
            remove_temporaries(folder)
            _steps(job, folder, layout, journal, talk, found["model"])
    return read_document(folder / layout.manifest)


def _steps(
    job: Job, folder: Path, layout: Layout, journal: Journal, talk: Talk, files_before: Mapping[str, Any]
) -> None:
    work = folder / WORK
    statistics, calibrated = _statistics(job, folder / layout.statistics, journal, work, talk)
    lost = _unobserved(job, calibrated["unobserved"])
    targets = [target for target in job.targets if target.name not in lost]
    records = []
    total = sum(header.file_size for header in job.source.shards.values())
    with talk.bar("select" if layout is RUN else "select and edit", total, "B") as advance:
        for record in pass_shards(
            job.source,
            targets,
            _mask_maker(job, statistics, calibrated["calibration"]),
            journal,
            work,
            factor=job.factor,
            output=None if layout is RUN else folder,
            progress=advance,
        ):
            _check_source(job, record)
            records.append(record)
    if job.edit and not counts.changed(records):
        masked = counts.masked(records)
        if masked:
            why = f"each of the {masked} masked weights rounds back to itself; choose a factor further from 1"
        else:
            why = "the masks are empty; choose another --proportion or other texts"
        raise Error(f"--factor {job.factor:g}: no weight would change, {why}")
    masks = _write_masks(job, folder / layout.masks, work, records)
    files = {layout.statistics: Digest(**calibrated["file"]), layout.masks: masks}
    _check_unchanged(job, files_before)
    facts = _facts(job, calibrated, records, lost)
    write = write_run if layout is RUN else write_output
    write(folder, job.source, facts, records, files, journal)


def _unobserved(job: Job, names: Iterable[str]) -> list[str]:
    """The targets among the weights whose input was never seen; refuses if no target is left."""
    wanted = {target.name for target in job.targets}
    lost = sorted(wanted.intersection(names))
    if len(lost) == len(wanted) or (lost and job.options.strict):
        raise Error(f"{lost[0]}: its input was never seen in calibration ({len(lost)} such targets); --exclude it")
    return lost


def _require(job: Job, folder: Path, freed: int) -> None:
    """Refuse what cannot be carried out, before anything is written or removed."""
    from mathneuro_export.models.memory import available_memory

    if job.run is None:
        from mathneuro_export.models.loading import load_tokenizer

        load_tokenizer(job.source)
    need = None
    if job.run is None:
        from mathneuro_export.preflight import check_memory, needs

        need = needs(job)
        check_memory(job, need)
    cost = costs(job, need)
    require_space(folder, cost.bytes_written - freed)
    free = available_memory()
    if cost.peak_host_bytes > free:
        raise ResourceError(
            f"{job.source.id}: needs about {cost.peak_host_bytes} bytes of memory, {free} are available; "
            "use a larger machine"
        )


def _statistics(
    job: Job, path: Path, journal: Journal, work: Path, talk: Talk
) -> tuple[StatisticsFile, dict[str, Any]]:
    """The statistics file at its final place, made, copied or found there by a resumed job."""
    record = journal.get("statistics")
    if record is not None and path.is_file() and entry(digest_file(path)) == record["file"]:
        return StatisticsFile(path), record
    make_folder(path.parent)
    if job.run is not None:
        record = _copied_statistics(job, path)
    else:
        from mathneuro_export.calibrate import calibrate_job

        record = calibrate_job(job, path, talk, journal, work)
    journal.record("statistics", record)
    return StatisticsFile(path), record


def _copied_statistics(job: Job, path: Path) -> dict[str, Any]:
    assert job.run is not None
    file = entry(_copy_of_run(job, job.run.statistics, path))
    source = job.run.document["source"]
    return {
        "file": file,
        "calibration": job.run.document["calibration"],
        "tokenizer": source.get("tokenizer"),
        "environment": {},
        "unobserved": [],
        "notes": [],
    }


def _copy_of_run(job: Job, path: Path, target: Path) -> Digest:
    assert job.run is not None
    digest = copy_file(path, target)
    name = path.relative_to(job.run.folder).as_posix()
    listed = job.run.manifest.output.get(name)
    if listed is None or (listed.size, listed.sha256) != (digest.size, digest.sha256):
        raise Error(f"{job.run.folder}: {name} differs from its manifest; run `mathneuro-export verify` on it")
    return digest


def _mask_maker(job: Job, statistics: StatisticsFile, calibration: Mapping[str, Any]) -> MaskMaker:
    starved = counts.starved(calibration, job.selection["min_expert_tokens"])
    corpora = job.run.corpora if job.run else tuple(corpus.name for corpus in job.corpora)
    rule = Rule(corpora, job.selection["proportion"], job.selection["control"], job.selection["seed"], starved)
    if not job.own_masks or job.run is None:
        return selecting(statistics, rule)
    entries: Mapping[str, dict[str, Any]] = job.run.document["tensors"]
    if job.run.masks is None:
        return matching(selecting(statistics, rule), entries)
    return stored(MaskFile(job.run.masks), entries)


def _check_unchanged(job: Job, before: Mapping[str, Any]) -> None:
    """Refuse to finish what was made from files that changed meanwhile: sizes and times are those of the beginning."""
    changed = sorted(name for name, now in fingerprint(job)["model"].items() if before.get(name) != now)
    if changed:
        raise Error(f"{changed[0]}: changed in the source while it was read; run the command again")


def _check_source(job: Job, record: dict[str, Any]) -> None:
    """A `--from` job's shard must be the very bytes the RUN was made from; `apply` takes any version."""
    if job.run is None or (job.verb == "apply" and job.run.masks is not None):
        return
    listed = job.run.document["source"]["files"].get(record["file"])
    if listed != record["source"]:
        raise not_the_source(record["file"], job.source, job.run)


def _write_masks(job: Job, path: Path, work: Path, records: list[dict[str, Any]]) -> Digest:
    if job.own_masks and job.run is not None and job.run.masks is not None:
        return _copy_of_run(job, job.run.masks, path)
    return assemble_masks(path, work, records)


def _facts(job: Job, calibrated: Mapping[str, Any], records: list[dict[str, Any]], lost: list[str]) -> Facts:
    skipped = {reason: list(names) for reason, names in job.skipped.items()}
    notes = [note.as_warning() for note in job.notes]
    if lost:
        skipped.setdefault(NOT_OBSERVED, []).extend(lost)
        message = f"{len(lost)} targets were left as they are: their input was never seen in calibration"
        notes.append({"code": "not-observed", "message": message, "count": len(lost), "tensors": lost})
    notes += [*calibrated["notes"], *counts.warnings(records, job.factor), *_starved(job, calibrated, records)]
    notes += _strays(job)
    return Facts(
        calibration=calibrated["calibration"],
        selection=job.selection,
        edit=job.edit,
        skipped=skipped,
        warnings=notes,
        environment=environment(**calibrated["environment"]),
        tokenizer=calibrated["tokenizer"],
    )


def _starved(job: Job, calibrated: Mapping[str, Any], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if job.selection["parents"]:
        return []
    least = job.selection["min_expert_tokens"]
    return counts.starved_warning(records, counts.starved(calibrated["calibration"], least), least)


def _strays(job: Job) -> list[dict[str, Any]]:
    message = "is not named by the index and was left out: it holds unedited weights"
    names = job.source.stray if job.edit else ()
    return [{"code": "stray-weights", "message": f"{name} {message}", "file": name} for name in names]
