"""Manifests: every mistake is a ManifestError that names file, entry, line and what is legal."""

from __future__ import annotations

import pytest

from attn_backends import ManifestError, Registry
from attn_backends.registry.manifest import read_manifest_file

GOOD = """schema = 1
name = "mine"
version = "1.0"
api = ">=1.0,<2"
kernel = "nowhere:run"

[[capability]]
dtype = ["float16"]

[[capability]]
dtype = ["float32"]
head_dim = { min = 8, max = 256 }
"""


def _read(tmp_path, text):
    file = tmp_path / "backend.toml"
    file.write_text(text)
    return read_manifest_file(file, label="mine/backend.toml", origin="third_party")


def test_a_good_manifest_is_read(tmp_path):
    """What stands in the file is what the manifest says; the rest is at its default."""
    manifest = _read(tmp_path, GOOD)
    assert (manifest.name, manifest.version, manifest.priority, manifest.tier, manifest.numerics) == (
        "mine", "1.0", 0, "standard", "exact",
    )  # fmt: skip
    assert [box.source for box in manifest.boxes] == [f"mine/backend.toml [[capability]] {n}" for n in (1, 2)]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('dtype = ["float32"]', 'dtype = ["float33"]', [":11", "[[capability]] 2", "float33", "bfloat16"]),
        ("head_dim = {", "head_dims = {", [":12", "[[capability]] 2", "head_dims", "head_dim"]),
        ("max = 256", "most = 256", [":12", "most", "min, max, multiple_of"]),
        ("min = 8", "min = 900", [":12", "min 900 is above max 256"]),
        ('dtype = ["float16"]', "dtype = []", [":8", "[[capability]] 1", "empty set"]),
        ('name = "mine"', 'name = "My FA"', [":2", "name", "My FA"]),
        ('name = "mine"\n', "", ["name", "missing"]),
        ('version = "1.0"', 'version = "one"', [":3", "version", "one"]),
        ('api = ">=1.0,<2"', 'api = "1.0 or so"', [":4", "api"]),
        ('kernel = "nowhere:run"', 'kernel = "nowhere.run"', [":5", "kernel", "module:callable"]),
        ('kernel = "nowhere:run"\n', "", ["kernel", "missing"]),
        ("schema = 1", "schema = 2", [":1", "schema", "2"]),
        ("schema = 1", 'schema = 1\nprioritie = 3', [":2", "prioritie", "priority"]),
        ("schema = 1", 'schema = 1\nnumerics = "fast"', [":2", "numerics", "approximate"]),
        ("schema = 1", 'schema = 1\nrequires = ["torch>>2"]', [":2", "requires", "torch>>2"]),
        ("schema = 1", 'schema = 1\nconverts = ["everything"]', [":2", "converts", "make_contiguous"]),
        ("schema = 1", "schema = 1\nefficiency = { matrix = 2.0 }", [":2", "efficiency", "(0, 1]"]),
        ("schema = 1", "schema = 1\nstart_us = -1", [":2", "start_us", "0 to 1000"]),
        ("schema = 1", "schema = 1\ntiles = [{ rows = 0 }]", [":2", "tiles", "from 1 to"]),
        ("schema = 1", "schema = 1\ntiles = [{ row = 64 }]", [":2", "tiles", "row is not one of", "rows"]),
        ("schema = 1", "schema = 1\ntiles = [{ split = 1 }]", [":2", "tiles", "true or false"]),
        ("schema = 1", "schema = 1\ntiles = [{ pace = 0 }]", [":2", "tiles", "pace = 0 is no number above 0"]),
        ("schema = 1", "schema = 1\ntiles = [{ packs = true }]", [":2", "tiles", "not one of always, to_fill"]),
        ("schema = 1", "schema = ", ["not TOML", "line 1"]),
        ('dtype = ["float16"]', "unknown_feature = [true]", [":8", "unknown_feature", "cannot be declared"]),
        ('dtype = ["float16"]', "alignment = 12", [":8", "alignment", "power of two"]),
        ('dtype = ["float16"]', 'arch = { min = "9.0" }', [":8", "arch", "upper end"]),
        ('dtype = ["float16"]', 'arch = ["nine"]', [":8", "arch", "nine"]),
        ('dtype = ["float16"]', "softcap = [1]", [":8", "softcap", "true or false"]),
        ('dtype = ["float16"]', 'graph = ["sometimes"]', [":8", "graph", "uniform_decode"]),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(tmp_path, old, new, words):
    """Label, line, entry and what would be legal stand in the message."""
    assert old in GOOD
    with pytest.raises(ManifestError) as caught:
        _read(tmp_path, GOOD.replace(old, new, 1))
    assert all(word in str(caught.value) for word in ["mine/backend.toml", *words]), str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_no_box_at_all_is_a_mistake(tmp_path):
    """A backend without boxes could serve nothing."""
    with pytest.raises(ManifestError, match="at least one"):
        _read(tmp_path, GOOD.partition("[[capability]]")[0])


def test_a_missing_file_is_named(tmp_path):
    """A file that is not there is a ManifestError with the system's words."""
    with pytest.raises(ManifestError, match="cannot be read: No such file"):
        read_manifest_file(tmp_path / "backend.toml", label="mine/backend.toml", origin="third_party")


@pytest.mark.parametrize(
    "manifest",
    [{}, {"name": "x"}, {"name": "x", "capability": []}, {"name": "x", "capability": [{"dtype": "float33"}]}],
    ids=["empty", "no-boxes", "empty-boxes", "bad-box"],
)
def test_a_refused_registration_changes_nothing(manifest):
    """register() with a bad manifest raises and leaves the registry as it was."""
    registry = Registry(builtin=False, autoload=False)
    before = registry.snapshot()
    with pytest.raises(ManifestError):
        registry.register(manifest, lambda call: None)
    assert registry.snapshot() is before
    assert registry.changes == 0


@pytest.mark.parametrize(("role", "value"), [("kernels", print), ("check", "not callable")])
def test_a_strange_callable_is_refused(role, value):
    """register() takes callables for known roles only."""
    with pytest.raises(ManifestError, match=role):
        Registry(builtin=False, autoload=False).register(
            {"name": "x", "capability": [{"dtype": "any"}]}, print, **{role: value}
        )


def test_reading_does_not_change_what_was_given():
    """A manifest given as a dict stays the caller's."""
    given = {"name": "x", "capability": [{"dtype": ["float16"]}]}
    copy = {"name": "x", "capability": [{"dtype": ["float16"]}]}
    Registry(builtin=False, autoload=False).register(given, print)
    assert given == copy


@pytest.mark.parametrize(
    "table", [{"min": 65, "max": 70, "multiple_of": 64}, {"max": 62, "mod": 64, "rest": 63}], ids=["multiple", "rest"]
)
def test_numbers_that_admit_nothing_are_a_mistake(table):
    """A range between two multiples is refused when it is registered."""
    with pytest.raises(ManifestError, match=r"head_dim.*nothing from"):
        Registry(builtin=False).register({"name": "mine", "capability": [{"head_dim": table}]}, print)
