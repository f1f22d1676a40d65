"""`mathneuro-export verify`."""

import click

from mathneuro_export.cli.common import habits, hub_options, print_json
from mathneuro_export.errors import VerificationError
from mathneuro_export.talk import Talk


@click.command("verify")
@click.argument("folder", metavar="OUT|RUN")
@click.option("--base", metavar="MODEL", help="The source: prove masks and formula element by element.")
@hub_options
@habits
def command(folder: str, base: str | None, as_json: bool, talk: Talk) -> None:
    """Prove that OUT or RUN is what its manifest says; with --base, that only the masked weights differ."""
    from mathneuro_export.checkpoint.hub import local_folder, local_run
    from mathneuro_export.export.verify import verify
    from mathneuro_export.export.verify_report import printable

    path = local_run(folder, whole=True, talk=talk).folder
    report = verify(path, local_folder(base, talk=talk).folder if base else None)
    if as_json:
        print_json(report.as_json())
    else:
        for problem in report.problems:
            click.echo(": ".join(printable(part) for part in (problem.file, problem.tensor, problem.message) if part))
        for note in report.notes:
            talk.say(f"note: {note}")
        proved = f", {report.elements_checked:,} elements compared with the base" if base else ""
        click.echo(f"{printable(folder)}: {'ok' if report.ok else 'NOT ok'}, {report.files} files checked{proved}")
    if not report.ok:
        count = f"{len(report.problems)} problem{'s' if len(report.problems) != 1 else ''}"
        raise VerificationError(
            f"{printable(folder)}: {count} found, expected none; do not rely on this folder, make it anew"
        )
