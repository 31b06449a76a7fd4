"""`python -m attn_backends.cli.generate [--check]`: every file that derives from the one table, the manifests or the commands.

`make generate` writes them, `make check` calls it with --check, which names the stale ones and exits 1. For a checkout:
an installed package has no docs folder to write to.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from attn_backends.cli.failure import Failure
from attn_backends.cli.options import json_option
from attn_backends.cli.screen import print_json

ROOT = Path(__file__).resolve().parents[2]
HOME = "attn_backends.cli.generators"

# File -> the module whose `render()` is its text.
FILES = {
    "attn_backends/conformance/report/schema/conformance-1.schema.json": f"{HOME}.conformance_schema",
    "attn_backends/request_fields.pyi": f"{HOME}.stub",
    "attn_backends/registry/schema/manifest-1.schema.json": f"{HOME}.manifest_schema",
    "attn_backends/selector/log/schema/decision-1.schema.json": f"{HOME}.decision_schema",
    "docs/axes.md": f"{HOME}.axes",
    "docs/capability-matrix.md": f"{HOME}.matrix",
    "docs/cli.md": f"{HOME}.commands",
    "docs/images/explain.svg": f"{HOME}.picture",
    "docs/images/triton_tiled_walks.svg": f"{HOME}.walks",
    "docs/manifest.md": f"{HOME}.manifest",
    "docs/policy.md": f"{HOME}.policy",
    "docs/reason-codes.md": f"{HOME}.codes",
}


@click.command("generate")
@click.option("--check", is_flag=True, help="Write nothing; name the stale files and exit 1.")
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=ROOT,
    help="The checkout.  [this one]",
)
@json_option
@click.pass_context
def command(ctx: click.Context, check: bool, root: Path, as_json: bool) -> None:
    """Rewrite the files that are derived from the one table, the manifests and the commands."""
    stale = stale_files(root)
    if not check:
        for name, text in stale.items():
            _write(root / name, text)
    if as_json:
        print_json({"stale" if check else "written": list(stale), "files": list(FILES)})
    else:
        for name in stale:
            click.echo(f"{name}: {'stale' if check else 'written'}", err=check)
        if check and stale:
            click.echo("run `make generate`", err=True)
        elif not stale:
            click.echo(f"{len(FILES)} generated files: up to date")
    if check and stale:
        ctx.exit(1)


def stale_files(root: Path) -> dict[str, str]:
    """What should stand in every file that does not say so."""
    wanted = {name: str(importlib.import_module(module).render()) for name, module in FILES.items()}
    return {name: text for name, text in wanted.items() if _read(root / name) != text}


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _write(path: Path, text: str) -> None:
    if not path.parent.parent.is_dir():
        raise Failure(f"{path.parent.parent.name} is no folder of a checkout", "give it with --root")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    command(prog_name="python -m attn_backends.cli.generate")
