"""Plugins that die, hang, shout, fork or write where they should not: each has its own outcome, and the run goes on."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import pytest

from attn_backends.conformance.case import Case
from attn_backends.conformance.isolation import MOST_HANGS, run_isolated
from attn_backends.conformance.item import Item, parse_item
from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.report.replay import replay
from attn_backends.conformance.report.schema import validate
from tests.conformance.wrong_plugins.project import SOME_CALLS, Plugin, plugins_of
from tests.conformance.wrong_plugins.site import ROOT, Site

MISBEHAVING = plugins_of("misbehaving")
BROKEN = {  # manifests that do not read, and words of the message
    "broken_toml": (("schema = 1\n", "schema = = 1\n"), "broken_toml/backend.toml: not TOML: Invalid value (at line 1"),
    "broken_axis": (("softcap = ", "sofcap = "), "sofcap: unknown axis; did you mean softcap"),
    "broken_name": (('name = "honest_fa"', 'name = "dishonest_fa"'), "dishonest_fa"),
}
UNLOADABLE = {  # plugins that list well and do not load
    "no_function": (("backend.toml", "honest_fa.kernel:run", "honest_fa.kernel:walk"), "has no callable 'walk'"),
    "no_module": (("backend.toml", "honest_fa.kernel:run", "honest_fa.colonel:run"), "No module named"),
    "import_raises": (("kernel.py", "import torch\n", "raise RuntimeError('no driver')\n"), "no driver"),
    "import_exits": (("kernel.py", "import torch\n", "raise SystemExit(1)\n"), "SystemExit"),
}
PATIENCE = 15.0  # seconds per item; a hang costs as much

CALM = [Item("oracle", Case(seed=seed)) for seed in range(2)]
CALLED = Item("oracle", Case(softcap=2.0))  # a call on which they misbehave
OF_CLAUSE = {"PURITY-1": "unmodified", "PURITY-2": "apart", "PURITY-3": "oracle", "DOWNCAST-1": "oracle"}


def _bent(name: str, *edits: tuple[str, str, str]) -> Plugin:
    return Plugin(name=name, story="", edits=edits, expected={})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad_backends")
    broken = [_bent(name, ("backend.toml", *edit)) for name, (edit, _) in BROKEN.items()]
    unloadable = [_bent(name, edit) for name, (edit, _) in UNLOADABLE.items()]
    return Site(folder / "site", folder / "data").lay_out([*MISBEHAVING.values(), *broken, *unloadable])


def run(site, name, items, **more):
    return run_isolated(name, items, path=[str(site.folder), str(ROOT)], timeout=PATIENCE, **more)


ON_SOME_CALLS = [name for name, plugin in MISBEHAVING.items() if "clause" not in plugin.expected]
ON_ALL_CALLS = [name for name, plugin in MISBEHAVING.items() if "clause" in plugin.expected]
