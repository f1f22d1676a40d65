"""One job from options to plan: what is read, what is edited and why, decided before any weight is touched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import mathneuro_export
from mathneuro_export.basis import Basis, basis_of_masks, basis_of_run, check_same_source
from mathneuro_export.calibration.corpus import Corpus, load_corpus
from mathneuro_export.calibration.statistics import StatisticsFile
from mathneuro_export.checkpoint.hub import local_run, open_model
from mathneuro_export.checkpoint.source import Source
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.export.edit import check_factor
from mathneuro_export.export.finish import unhashed
from mathneuro_export.export.run import Run, open_run
from mathneuro_export.models.filters import kind_of, narrow
from mathneuro_export.models.targets import Note, Plan, Target, plan_targets
from mathneuro_export.options import Options, flag, option_fields
from mathneuro_export.talk import Talk

SILENT = Talk()
OWN = ("proportion", "control", "include", "exclude", "layers", "lm_head", "min_expert_tokens")
"""Options of a selection; at a RUN's own its stored masks are used."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that has been checked.

    `run` is the RUN it stands on, None where it calibrates; `own_masks` says that the masks are the RUN's, not selected
    again from its statistics; `selection` and `edit` are the manifest's sections.
    """

    verb: str
    source: Source
    run: Run | None
    own_masks: bool
    targets: tuple[Target, ...]
    skipped: Mapping[str, Sequence[str]]
    selection: dict[str, Any]
    edit: dict[str, Any] | None
    corpora: tuple[Corpus, ...]
    plan: Plan | None
    options: Options

    @property
    def notes(self) -> tuple[Note, ...]:
        """What is to be warned of before the work begins."""
        return self.plan.notes if self.plan else ()

    @property
    def factor(self) -> float | None:
        """What the masked weights are multiplied by; None where nothing is edited."""
        return None if self.edit is None else float(self.edit["factor"])


def prepare(verb: str, model: str | Path, options: Options, *, weights: bool = True, talk: Talk = SILENT) -> Job:
    """The job of `identify`, `scale` or `prune`; without `weights`, none is fetched of a MODEL on the Hub.

    Raises:
        UsageError: options that contradict each other or match nothing.
        Error: a bad model, corpus or RUN.
    """
    run = _run(options.from_run, options, talk) if options.from_run is not None else None
    inherited = run.manifest.selection.model_dump() if run is not None else {}
    if run is not None:
        _refuse_calibration_options(options, inherited)
    source = _source(model, options, weights, talk)
    corpora: tuple[Corpus, ...] = ()
    plan: Plan | None = None
    if run is None:
        plan = plan_targets(source)
        head = plan.lm_head.name if plan.lm_head else None
        basis = Basis(plan.linear, head, plan.skipped)
        corpora = load_corpora(options)
    else:
        check_same_source(source, run)
        basis = basis_of_run(source, run, StatisticsFile(run.statistics))
    selection = _selection(options, inherited)
    own = all(selection[name] == inherited.get(name) for name in (*OWN, "seed"))
    if not own:
        selection["parents"] = []
    edit = None
    if verb != "identify":
        edit = {
            "operation": verb,
            "factor": 0.0 if verb == "prune" else float(options.factor),
            "factor_source": "default" if verb == "scale" and "factor" not in options.given else "option",
        }
    targets, skipped = _narrowed(basis, selection)
    return _checked(Job(verb, source, run, own, targets, skipped, selection, edit, corpora, plan, options))


def prepare_apply(
    run: str | Path, model: str | Path, options: Options, *, weights: bool = True, talk: Talk = SILENT
) -> Job:
    """The job of `apply`: a RUN's masks on a checkpoint of the same names and shapes.

    Raises:
        UsageError: no factor, or one that changes nothing.
        Error: a bad model or RUN, or masks of other shapes.
    """
    if "factor" not in options.given:
        raise UsageError("--factor is missing: give the number to multiply the masked weights by, as 1.1 (0 prunes)")
    opened, source = _run(run, options, talk), _source(model, options, weights, talk)
    basis = basis_of_masks(source, opened)
    if opened.masks is None:
        check_same_source(source, opened)
    edit = {
        "operation": "prune" if options.factor == 0 else "scale",
        "factor": float(options.factor),
        "factor_source": "option",
    }
    selection = {**opened.manifest.selection.model_dump(), "parents": [opened.manifest.digest]}
    return _checked(Job("apply", source, opened, True, basis.linear, basis.skipped, selection, edit, (), None, options))


def _source(model: str | Path, options: Options, weights: bool, talk: Talk) -> Source:
    return open_model(
        model,
        revision=options.revision,
        cache_dir=options.cache_dir,
        offline=options.offline,
        weights=weights,
        talk=talk,
    )


def _run(spec: str | Path, options: Options, talk: Talk) -> Run:
    return open_run(local_run(spec, cache_dir=options.cache_dir, offline=options.offline, talk=talk).folder)


def _checked(job: Job) -> Job:
    if job.factor is not None:
        check_factor(job.factor, {target.dtype for target in job.targets})
    if job.options.strict and job.notes:
        raise Error(f"--strict: {job.notes[0].message}")
    return job


def _refuse_calibration_options(options: Options, inherited: Mapping[str, Any]) -> None:
    names = {item.name for item in option_fields("calibration", "compute", "memory")} & options.given
    if (options.control if "control" in options.given else inherited["control"]) == "random":
        names.discard("seed")
    if names:
        raise UsageError(f"{flag(min(names))} beside --from: the RUN's statistics are used as they are; leave it out")


def _selection(options: Options, inherited: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest's section: what was given, else the RUN's own, else the default."""
    values = {
        name: getattr(options, name) if name in options.given or name not in inherited else inherited[name]
        for name in (*OWN, "seed")
    }
    return {
        "proportion": float(values["proportion"]),
        "control": values["control"],
        "seed": values["seed"],
        "include": list(values["include"]),
        "exclude": list(values["exclude"]),
        "layers": values["layers"],
        "lm_head": bool(values["lm_head"]),
        "min_expert_tokens": values["min_expert_tokens"],
        "parents": list(inherited.get("parents", [])),
    }


def _narrowed(basis: Basis, selection: Mapping[str, Any]) -> tuple[tuple[Target, ...], dict[str, list[str]]]:
    kept, reasons = narrow(
        [target.name for target in basis.linear],
        include=selection["include"],
        exclude=selection["exclude"],
        layers=selection["layers"],
        lm_head=selection["lm_head"],
        head=basis.head,
    )
    wanted = set(kept)
    skipped = {reason: list(names) for reason, names in basis.skipped.items()}
    for reason, names in reasons.items():
        skipped.setdefault(reason, []).extend(names)
    return tuple(target for target in basis.linear if target.name in wanted), skipped


def load_corpora(options: Options) -> tuple[Corpus, ...]:
    """The corpora of the options, `math` first, then `general`, `general-2`, ..."""
    count = options.num_samples if "num_samples" in options.given else None
    names = ["math", "general", *(f"general-{i}" for i in range(2, len(options.general) + 1))]
    specs = [options.math, *options.general]
    return tuple(load_corpus(name, spec, count, options.seed) for name, spec in zip(names, specs, strict=True))


def fingerprint(job: Job) -> dict[str, Any]:
    """What a resumed job must have in common with the one it goes on with: model files, corpora, RUN, options."""
    settings = {
        flag(item.name): getattr(job.options, item.name)
        for item in option_fields("calibration", "compute", "selection", "edit")
    }
    return {
        "command": job.verb,
        "version": mathneuro_export.__version__,
        "model": {name: _identity(job.source, name) for name in (*job.source.shards, *unhashed(job.source))},
        "corpora": {corpus.name: corpus.digest for corpus in job.corpora},
        "RUN": job.run.manifest.digest if job.run else None,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()},
    }


def _identity(source: Source, name: str) -> list[int]:
    status = (source.folder / name).stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def kinds(targets: Sequence[Target]) -> dict[str, dict[str, int]]:
    """Tensors and weights of each kind of module."""
    table: dict[str, dict[str, int]] = {}
    for target in targets:
        row = table.setdefault(kind_of(target.name), {"tensors": 0, "weights": 0})
        row["tensors"] += 1
        row["weights"] += prod(target.shape)
    return dict(sorted(table.items()))
