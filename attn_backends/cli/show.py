"""`attn-backends show NAME`: one backend's manifest in full. Runs none of its code."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import click

from attn_backends.cli.boxes import box_tables, undeclared
from attn_backends.cli.options import BACKEND, json_option
from attn_backends.cli.reach import reach_phrase
from attn_backends.cli.screen import BAD, GOOD, HEAD, NAME, QUIET, WARN, console, facts, print_json, text
from attn_backends.cli.standing import READY, Standing, environment_here, standings
from attn_backends.registry.registry import default_registry

if TYPE_CHECKING:
    from rich.text import Text

    from attn_backends.registry.environment import Environment
    from attn_backends.registry.manifest import Manifest
    from attn_backends.registry.tiles import Tiles
    from attn_backends.selector.quarantine import Entry


@click.command("show")
@click.argument("name", type=BACKEND)
@json_option
def command(name: str, as_json: bool) -> None:
    """One backend's manifest: what it can do, what it needs, where it is known to be wrong."""
    from attn_backends.selector.quarantine import entries_for

    snapshot = default_registry().snapshot()
    manifest = snapshot.get(name)
    standing = next(one for one in standings(snapshot) if one.name == name)
    environment = environment_here(snapshot)
    entries = entries_for([manifest])
    if as_json:
        print_json(_record(manifest, standing, environment, entries))
    else:
        _draw(manifest, standing, environment, entries)


def _record(
    manifest: Manifest, standing: Standing, environment: Environment, entries: tuple[Entry, ...]
) -> dict[str, Any]:
    return {
        **standing.to_json(),
        "api": str(manifest.api),
        "callables": {**manifest.callables, **dict.fromkeys(manifest.functions, "in process")},
        "efficiency": manifest.efficiency,
        "start_us": manifest.start_us,
        "tiles": manifest.raw.get("tiles", []),
        "algorithm": manifest.algorithm,
        "installed": {one.name: environment.version(one.name) for one in manifest.requires},
        "capability": [box.raw for box in manifest.boxes],
        "known_bad": [_entry_record(entry) for entry in entries],
    }


def _entry_record(entry: Entry) -> dict[str, Any]:
    return {
        "code": entry.code, "id": entry.id, "when": entry.when.to_json(), "reason": entry.reason,
        "evidence": entry.evidence, "expires": entry.expires, "backend_version": str(entry.backend_version),
        "versions": [str(one) for one in entry.versions], "source": entry.source,
    }  # fmt: skip


def _draw(manifest: Manifest, standing: Standing, environment: Environment, entries: tuple[Entry, ...]) -> None:
    screen = console()
    screen.print(text((manifest.name, NAME), f" {manifest.version}  ", (standing.word, _colour(standing))))
    for reason in standing.reasons:
        screen.print(text(("  " + str(reason), WARN)))
    screen.print()
    screen.print(facts(_facts(manifest, environment)))
    screen.print()
    screen.print(text((_counted(manifest), HEAD)))
    for made in box_tables(manifest.boxes, screen.width):
        screen.print()
        screen.print(made)
    if refused := undeclared(manifest.boxes):
        screen.print()
        screen.print(text(("in no box, hence refused: ", HEAD), (", ".join(refused), QUIET)))
    if entries:
        screen.print()
        screen.print(text(("known to be wrong", HEAD)))
        for entry in entries:
            screen.print(facts(_known_bad(entry)))


def _counted(manifest: Manifest) -> str:
    count = len(manifest.boxes)
    return f"{count} boxes; a request fits if it fits one of them whole" if count > 1 else "1 box"


def _colour(standing: Standing) -> str:
    return GOOD if standing.status == READY else BAD


def _facts(manifest: Manifest, environment: Environment) -> list[tuple[str, str | Text]]:
    from attn_backends.cli.reach import reach

    rows: list[tuple[str, str | Text]] = [
        ("kind", f"{manifest.tier}, {manifest.numerics}, {manifest.origin}, priority {manifest.priority}"),
        ("runs on", reach_phrase(reach(manifest))),
        ("requires", _requirements(manifest, environment)),
        ("converts", ", ".join(manifest.converts) or "nothing"),
        ("source", f"{manifest.label}, for backend API {manifest.raw.get('api', manifest.api)}"),
    ]
    rows += [(role, name) for role, name in manifest.callables.items()]
    rows += [(role, "given in process") for role in manifest.functions]
    if manifest.efficiency:
        rows.append(("efficiency", ", ".join(f"{name} {share:.0%}" for name, share in manifest.efficiency.items())))
        rows.append(("start", f"{manifest.start_us:g} us a call"))
    if manifest.tiles:
        rows.append(("tiles", "; ".join(map(_tile, manifest.tiles))))
    return rows


def _tile(tiles: Tiles) -> str:
    """Queries by keys, and the calls that they are for, where not for all."""
    held = [] if tiles.head_dim is None else [f"heads to {tiles.head_dim}"]
    held += [] if tiles.causal is None else ["causal" if tiles.causal else "full"]
    held += [] if tiles.longest is None else [f"to {tiles.longest} queries"]
    return f"{tiles.rows} x {tiles.keys}" + (f" ({', '.join(held)})" if held else "")


def _requirements(manifest: Manifest, environment: Environment) -> Text:
    parts: list[str | tuple[str, str]] = []
    for written, requirement in zip(manifest.raw.get("requires", ()), manifest.requires, strict=True):
        met = environment.meets(requirement)
        version = environment.version(requirement.name) or "not installed"
        parts += ["\n" if parts else "", str(written), "  ", (f"here: {version}", GOOD if met else BAD)]
    return text(*parts) if parts else text("nothing")


def _known_bad(entry: Entry) -> list[tuple[str, str | Text]]:
    over = entry.expires < dt.datetime.now(tz=dt.UTC).date().isoformat()
    versions = ", ".join(str(one) for one in entry.versions) or "every version"
    return [
        (f"  {entry.code}", text((entry.id, NAME))),
        ("  when", f"{entry.when.describe()} with {versions}"),
        ("  reason", entry.reason),
        ("  evidence", entry.evidence),
        ("  look again", text((entry.expires, WARN if over else ""), (" (overdue)" if over else "", WARN))),
    ]
