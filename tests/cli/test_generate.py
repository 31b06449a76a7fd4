"""Generated files: what they promise, and that --check sees a stale one."""

from __future__ import annotations

import ast
import dataclasses
import tomllib

import jsonschema
import pytest
from click.testing import CliRunner

from attn_backends.capability import TABLE
from attn_backends.cli.generate import FILES, command, stale_files
from attn_backends.cli.generators import axes, codes, commands, manifest, manifest_schema, matrix, policy, stub
from attn_backends.cli.main import COMMANDS
from attn_backends.registry.discovery import BUILTIN_FOLDER
from attn_backends.registry.manifest import manifest_keys
from attn_backends.registry.registry import default_registry
from attn_backends.request_fields import FIELDS
from attn_backends.selector.log.schema import REASON_CODES
from attn_backends.selector.policy import Policy

MANIFESTS = sorted(BUILTIN_FOLDER.glob("*/backend.toml"))


@pytest.fixture
def checkout(tmp_path):
    """An empty checkout."""
    for name in FILES:
        (tmp_path / name).parent.parent.mkdir(parents=True, exist_ok=True)
    return tmp_path


def generate(root, *words):
    return CliRunner().invoke(command, ["--root", str(root), *words])


def test_writing_makes_everything_up_to_date(checkout):
    """Once written, nothing is stale; written again, nothing changes."""
    assert generate(checkout).exit_code == 0
    assert generate(checkout, "--check").exit_code == 0
    assert stale_files(checkout) == {}


def test_check_names_the_stale_file_and_writes_nothing(checkout):
    """Exit code 1, the name on stderr, the file as it was."""
    generate(checkout)
    page = checkout / "docs" / "axes.md"
    page.write_text("old")
    result = generate(checkout, "--check")
    assert result.exit_code == 1
    assert "docs/axes.md: stale" in result.stderr
    assert page.read_text() == "old"


def test_a_changed_shape_of_a_record_is_seen(checkout, monkeypatch):
    """Whoever adds an outcome or a field to the conformance report is told that the shipped schema lacks it."""
    generate(checkout)
    monkeypatch.setattr("attn_backends.conformance.report.schema.SCHEMA", "attn.conformance/2")
    result = generate(checkout, "--check")
    assert result.exit_code == 1
    assert "conformance-1.schema.json: stale" in result.stderr


def test_the_stub_types_every_field():
    """One annotation per field of the table, as its check says."""
    classes = [node for node in ast.parse(stub.render()).body if isinstance(node, ast.ClassDef)]
    found = {
        line.target.id: ast.unparse(line.annotation) for line in classes[0].body if isinstance(line, ast.AnnAssign)
    }
    assert found == {field.name: field.check.annotation for field in FIELDS}


def test_pages_name_everything():
    """Axes, fields, codes, keys, backends and commands: none is missing."""
    expected = [
        (axes.render(), [row.axis for row in TABLE] + [field.name for field in FIELDS]),
        (codes.render(), REASON_CODES),
        (manifest.render(), manifest_keys()),
        (
            matrix.render(),
            [one.parent.name for one in MANIFESTS if one.parent.name in default_registry().snapshot().names()],
        ),
        (commands.render(), COMMANDS),
    ]
    for page, words in expected:
        for word in words:
            assert word in page


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.parent.name)
def test_every_manifest_fits_the_schema(path):
    """What the reader takes, the schema takes."""
    schema = manifest_schema.manifest_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(tomllib.loads(path.read_text()))


def test_every_declarable_axis_is_in_the_schema():
    """A new kind of axis needs a form in the schema."""
    known = manifest_schema.manifest_schema()["properties"]["capability"]["items"]["properties"]
    assert set(known) == {
        name for row in TABLE if row.kind.name != "undeclarable" for name in (row.axis, *row.parts)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("axis", "value"),
    [("dtype", "bf16"), ("head_dim", {"minimum": 3}), ("softcap", "yes"), ("arch", {"min": "9.0"}), ("sotfcap", [True]), ("strides", 3)],
    ids=str,
)  # fmt: skip
def test_the_schema_refuses_what_the_reader_refuses(axis, value):
    """An editor underlines it."""
    raw = tomllib.loads(MANIFESTS[0].read_text())
    raw["capability"][0][axis] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(manifest_schema.manifest_schema()).validate(raw)


def test_the_policy_page_says_every_key_with_its_default():
    """The keys are those of `Policy`; one that nobody explains stops the generator."""
    text = policy.render()
    for field in dataclasses.fields(Policy):
        if field.init:
            assert f"| `{field.name}` | " in text
    assert '| ["exact"] |' in text
    assert "any key" in text.lower()


def test_a_policy_key_without_a_meaning_stops_the_generator(monkeypatch):
    """Nobody finds an empty cell."""
    monkeypatch.delitem(policy.MEANINGS, "pin")
    with pytest.raises(KeyError, match="pin"):
        policy.render()


@pytest.fixture
def example(tmp_path):
    """The policy file of the page."""
    file = tmp_path / "policy.toml"
    file.write_text(policy.render().partition("```toml\n")[2].partition("```")[0])
    return file


@pytest.mark.parametrize("flags", policy.ANSWERS)
def test_the_answers_of_the_policy_page_are_given(run_json, example, flags):
    """Each command of the table, with the file above it."""
    backend, grounds, _why = policy.ANSWERS[flags]
    record = run_json("explain", "--policy", str(example), *flags.split())
    assert (record["backend"] or "none", record["source"] or "none") == (backend, grounds)


def test_the_example_of_the_policy_page_is_a_policy_file(example):
    """What stands there can be copied."""
    read = Policy.from_toml(example)
    assert read.prefer == ("hopper", "sdpa_cudnn")
    assert [dict(rule.then) for rule in read.rules] == [{"prefer": ("paged_decode",)}, {"forbid_reference": False}]
