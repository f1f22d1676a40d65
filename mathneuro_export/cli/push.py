"""`mathneuro-export push`."""

import click

from mathneuro_export.cli.common import habits, print_json
from mathneuro_export.talk import Talk


@click.command("push")
@click.argument("folder", metavar="OUT|RUN")
@click.argument("repo_id")
@click.option("--private", is_flag=True, help="Make the repository private; an existing public one is refused.")
@click.option("--revision", metavar="BRANCH", help="Branch to push to, made if it is missing.  [default: main]")
@click.option("--create-pr", is_flag=True, help="Open a pull request against main.")
@click.option("--commit-message", "message", metavar="TEXT", help="Title of the commit.")
@click.option("--no-masks", is_flag=True, help="Of a RUN, statistics and manifest alone; `apply` selects again.")
@click.option("--no-xet", is_flag=True, help="Upload without the Hub's xet path.")
@habits
def command(
    folder: str,
    repo_id: str,
    private: bool,
    revision: str | None,
    create_pr: bool,
    message: str | None,
    no_masks: bool,
    no_xet: bool,
    as_json: bool,
    talk: Talk,
) -> None:
    """Verify OUT or RUN, then push it to the Hub as REPO_ID (org/name), in one commit with card and manifest.

    The token comes from HF_TOKEN or `hf auth login`. An interrupted push goes on when it is run again.
    """
    from mathneuro_export.export.push import push

    pushed = push(
        folder,
        repo_id,
        private=private,
        revision=revision,
        create_pr=create_pr,
        message=message,
        masks=not no_masks,
        xet=not no_xet,
        talk=talk,
    )
    print_json(pushed.as_json()) if as_json else click.echo(f"{pushed.url}\ncommit {pushed.commit}")
