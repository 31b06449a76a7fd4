"""`list` and `standing`."""

from __future__ import annotations

import pytest

from attn_backends.cli.standing import standings
from attn_backends.registry.manifest import read_manifest
from attn_backends.registry.registry import Registry, default_registry

BOX = {
    "device": ["cpu"], "dtype": ["float32"], "kv_format": ["dense"], "layout": "any", "phase": "any", "attn_type": "any",
    "head_dim": "any", "head_dim_v": "any", "gqa_ratio": "any", "seq_len": "any", "causal": "any", "strides": "any",
    "index_width": "any",
}  # fmt: skip


def manifest(**more):
    return {"name": "probe", "capability": [BOX], **more}


def test_every_backend_is_listed_with_its_facts(run_json):
    """The JSON has what the manifest says, for every manifest."""
    found = {one["name"]: one for one in run_json("list")["backends"]}
    for known in default_registry().snapshot().manifests:
        one = found[known.name]
        facts = (known.version, known.tier, known.numerics, known.priority, len(known.boxes))
        assert (one["version"], one["tier"], one["numerics"], one["priority"], one["boxes"]) == facts


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_table_fits_the_screen_and_names_everybody(run, monkeypatch, width):
    """No line is longer than the screen, no name is cut."""
    monkeypatch.setenv("COLUMNS", width)
    result = run("list")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= int(width)
    for name in default_registry().snapshot().names():
        assert name in result.stdout


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, "ready"),
        ({"requires": ["no-such-package>=1"]}, "requirement"),
        ({"api": ">=7"}, "api_version"),
        ({"numerics": "quantized"}, "numerics"),
    ],
    ids=["ready", "missing package", "other api", "opt-in numerics"],
)
def test_the_status_is_the_selectors_first_reason(more, status):
    """What `list` says of a backend is what the selector's filters say."""
    registry = Registry(builtin=False, autoload=False)
    registry.register(manifest(**more), lambda call: None)
    (one,) = standings(registry.snapshot())
    assert one.status == status


def test_a_third_party_without_certificate_is_not_ready():
    """A backend that was found through an entry point has to prove itself first."""
    found = read_manifest(
        {**manifest(), "schema": 1, "version": "1", "api": ">=1.0,<2", "kernel": "m:f"}, label="x", origin="third_party"
    )
    registry = Registry(builtin=False, autoload=False)
    registry.register(found)
    (one,) = standings(registry.snapshot())
    assert (one.status, one.word) == ("not_certified", "not certified")


def test_a_broken_manifest_is_listed_with_its_reason(run, run_json, monkeypatch, tmp_path):
    """A manifest that cannot be read does not vanish, and does not take the rest down."""
    from attn_backends.registry import discovery

    folder = tmp_path / "cracked"
    folder.mkdir()
    (folder / "backend.toml").write_text('name = "cracked\n')
    broken = discovery.builtin(tmp_path)
    registry = Registry(builtin=False, autoload=False)
    monkeypatch.setattr(registry, "_manifests", {})
    monkeypatch.setattr(registry, "_broken", list(broken.broken))
    monkeypatch.setattr("attn_backends.cli.standing.default_registry", lambda: registry)
    (one,) = run_json("list")["backends"]
    assert one["status"] == "broken"
    assert "not TOML" in one["reasons"][0]["message"]
    assert "not TOML" in run("list").stdout


def test_a_blocked_backend_says_so(run_json, monkeypatch):
    """The knobs of this machine count."""
    monkeypatch.setenv("ATTN_BACKENDS_BLOCK", "eager")
    found = {one["name"]: one["status"] for one in run_json("list")["backends"]}
    assert found["eager"] == "blocked"
