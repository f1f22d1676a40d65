"""What `identify`, `scale`, `prune` and `apply` share: the dry run, and how plan and result are printed."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mathneuro_export.cli.common import habits, options_of, print_json
from mathneuro_export.options import GROUPS
from mathneuro_export.talk import Talk

if TYPE_CHECKING:
    from mathneuro_export.api import Plan, Result

UNTUNED = (
    "factor 1.1 is the default and untuned for this model (the paper's setting at 8B is 1.01); "
    "compare factors on held-out text before you rely on it"
)


Function = TypeVar("Function", bound=Callable[..., Any])


def making(verb: str, folder: str) -> Callable[[Function], Function]:
    """Options of a verb that writes a folder: `-o`, `--dry-run`, those of `Options`, and the habits."""

    def decorate(function: Function) -> Function:
        decorated = options_of(*GROUPS[verb])(habits(function))
        dry_run = click.option("--dry-run", is_flag=True, help="Print the plan; read no weight, write nothing.")
        output = click.option("-o", "--output", metavar=folder, help="Folder to write.")
        return output(dry_run(decorated))

    return decorate


def make(
    verb: str,
    model: str,
    *,
    output: str | None,
    dry_run: bool,
    as_json: bool,
    talk: Talk,
    run: str | None = None,
    **values: Any,
) -> None:
    """Print the plan with `--dry-run`, else carry the job out and print the result."""
    from mathneuro_export.api import carry_out, job_of, plan_of

    if output is None and not dry_run:
        raise click.UsageError("Missing option '-o' / '--output': give the folder to write")
    job = job_of(verb, model, values, run, weights=output is not None and not dry_run, talk=talk)
    if output is None or dry_run:
        plan = plan_of(job)
        print_json(plan.as_json()) if as_json else click.echo(_plan_text(plan))
        return
    if job.edit and job.edit["factor_source"] == "default":
        talk.say(UNTUNED)
    for note in job.notes:
        talk.say(f"warning: {note.message}")
    result = carry_out(job, output, talk)
    said = {note.message for note in job.notes}
    for warning in result.warnings:
        if warning["message"] not in said:
            talk.say(f"warning: {warning['message']}")
    print_json(result.as_json()) if as_json else click.echo(_result_text(result))


def _plan_text(plan: "Plan") -> str:
    lines = [f"{'targets':<24}{'tensors':>9}{'weights':>16}"]
    lines += [f"  {kind:<22}{row['tensors']:>9}{row['weights']:>16,}" for kind, row in plan.targets.items()]
    lines += ["skipped"]
    for reason, names in plan.skipped.items():
        lines.append(f"  {reason}: {len(names)} ({names[0]}{', ...' if len(names) > 1 else ''})")
    for name in ("bytes_read", "bytes_written", "peak_host_bytes", "peak_device_bytes"):
        lines.append(f"{name.replace('_', ' '):<24}{getattr(plan, name):>25,}")
    return "\n".join([*lines, *_model_text(plan.model)])


def _model_text(model: dict[str, Any]) -> Iterator[str]:
    if "layers" not in model:
        return
    yield f"{'decoder layers':<24}{model['layers']:>25,}"
    yield f"{'calibration':<24}{'layer by layer' if model['streamed'] else 'in memory':>25}"
    for target, source in model["ties"]:
        yield f"tied: {target} is {source}"
    if model["experts"]:
        yield f"{'experts, per token':<24}{model['experts']:>20} {model['experts_per_token'] or '?':>4}"
    for corpus, tokens in model["expert_tokens"].items():
        yield f"{'tokens per expert, ' + corpus:<24}{'about ' + format(tokens, ','):>25}"


def _result_text(result: "Result") -> str:
    changed = "" if result.changed is None else f", {result.changed:,} changed"
    counts = f"{result.targets} targets, {result.masked:,} weights masked{changed}"
    pushed = "" if result.pushed is None else f"\n{result.pushed.url}\ncommit {result.pushed.commit}"
    return f"{result.output}: {counts}, {result.seconds:.1f} s\n{result.manifest}{pushed}"
