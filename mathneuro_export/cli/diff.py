"""`mathneuro-export diff`."""

from pathlib import Path

import click

from mathneuro_export.cli.common import habits, hub_options, print_json
from mathneuro_export.talk import Talk


@click.command("diff")
@click.argument("inputs", metavar="A B [C ...]", nargs=-1, required=True)
@click.option("--base-a", metavar="MODEL", help="The source of A: its noise ceiling, and its masks where A holds none.")
@click.option("--base-b", metavar="MODEL", help="The source of B.")
@click.option("--weights", is_flag=True, help="Compare the two models' own values inside and outside the masks.")
@click.option("--csv", "csv_file", metavar="FILE", help="Every number, one line a tensor.")
@click.option("--plot", "plot_file", metavar="FILE.png|svg", help="Heatmap of layers and kinds, or of all pairs.")
@click.option("--html", "html_file", metavar="FILE", help="One page with summary, heatmap and sortable tables.")
@click.option("--strict", is_flag=True, help="Fail on a warning.")
@hub_options
@habits
def command(
    inputs: tuple[str, ...],
    base_a: str | None,
    base_b: str | None,
    weights: bool,
    csv_file: str | None,
    plot_file: str | None,
    html_file: str | None,
    strict: bool,
    as_json: bool,
    talk: Talk,
) -> None:
    """Compare the masks of A and B (RUN, OUT or manifest.json): overall, by layer, kind and tensor, beside chance."""
    from mathneuro_export.export.diff import diff
    from mathneuro_export.export.diff_files import check_files, write_files
    from mathneuro_export.export.diff_text import diff_text

    files = {"csv": csv_file, "plot": plot_file, "html": html_file}
    wanted = {kind: Path(file) for kind, file in files.items() if file is not None}
    check_files(wanted)
    report = diff(inputs, base_a=base_a, base_b=base_b, weights=weights, strict=strict, talk=talk)
    write_files(report, wanted, talk)
    print_json(report.as_json()) if as_json else click.echo(diff_text(report))
