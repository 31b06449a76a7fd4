"""`attn-backends conformance certificates`: what lies on this machine, whether it is valid, and taking it away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attn_backends.cli.options import BACKEND, json_option
from attn_backends.cli.screen import BAD, GOOD, NAME, console, print_json, table, text

if TYPE_CHECKING:
    from attn_backends.conformance.certificate import Certificate


@click.command("certificates")
@click.argument("names", nargs=-1, type=BACKEND)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where they lie.  [the user's]")
@click.option("--remove", is_flag=True, help="Delete those of the named backends.")
@json_option
@click.pass_context
def command(ctx: click.Context, names: tuple[str, ...], folder: Path | None, remove: bool, as_json: bool) -> None:
    """Certificates on this machine and whether each still holds: it is for the exact bytes of manifest and sources.

    Exits 1 if one of those that were asked for does not hold, or a named backend has none.
    """
    from attn_backends.conformance.certificate import certificates

    if remove:
        _remove(names, folder, as_json=as_json)
        return
    found = [one for one in certificates(folder) if not names or _backend(one) in names]
    standings = _standings(found)
    if as_json:
        print_json({"certificates": [_json(one, standing) for one, standing in zip(found, standings, strict=True)]})
    else:
        _print(found, standings)
    missing = set(names) - {_backend(one) for one in found}
    if missing or any(standing != "valid" for standing in standings):
        ctx.exit(1)


def _remove(names: tuple[str, ...], folder: Path | None, *, as_json: bool) -> None:
    from attn_backends.conformance.certificate import remove_certificates

    if not names:
        raise click.UsageError("--remove needs the names of backends")
    gone = {name: [path.name for path in remove_certificates(name, folder)] for name in names}
    if as_json:
        print_json({"removed": gone})
    for name, files in () if as_json else gone.items():
        click.echo(f"{name}: {', '.join(files) or 'no certificate'}{' removed' if files else ''}")


def _standings(found: list[Certificate]) -> list[str]:
    from attn_backends.registry.registry import default_registry

    manifests = {manifest.name: manifest for manifest in default_registry().snapshot().manifests} if found else {}
    return [one.standing(manifests) for one in found]


def _backend(one: Certificate) -> str:
    return str(one.data["backend"]) if one.data else ""


def _json(one: Certificate, standing: str) -> dict[str, Any]:
    return {"file": one.path.name, "standing": standing, **(one.data or {})}


def _print(found: list[Certificate], standings: list[str]) -> None:
    if not found:
        click.echo("no certificates; `attn-backends conformance run NAME --level full --certify` earns one")
        return
    made = table("backend", "version", "spec", "level", "on", "created", "standing")
    for one, standing in zip(found, standings, strict=True):
        data = one.data or {}
        cells = [str(data.get(key, "-")) for key in ("version", "spec", "level", "arch", "created")]
        style = GOOD if standing == "valid" else BAD
        made.add_row(text((_backend(one) or one.path.name, NAME)), *cells, text((standing, style)))
    console().print(made)
