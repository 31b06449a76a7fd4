"""The spec as people read it and as code reads it are the same document."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from attn_backends.conformance import spec
from attn_backends.conformance.spec import SPEC_VERSION, clauses, parse
from attn_backends.conformance.tolerance import SPEC_1_0

TEXT = (Path(spec.__file__).parent / f"{SPEC_VERSION}.md").read_text(encoding="utf-8")
GROUPS = [
    *("SCORE", "SCALE", "SOFTCAP", "BIAS", "ALIBI", "SINK", "CAUSAL", "WINDOW", "MASK", "POISON", "GQA", "HEADDIM"),
    *("VARLEN", "DENSELEN", "PAGED", "QUANT", "LSE", "DROPOUT", "BACKWARD", "STRIDE", "INDEX", "PURITY"),
    *("DETERMINISM", "BATCHINV", "DOWNCAST", "COMPILE", "GRAPH", "MERGE", "APPEND"),
    *("REFUSE", "DECLARE", "EVIDENCE", "PLUGIN"),
]


def test_every_clause_has_an_id_a_sentence_and_a_text():
    """A clause can be cited, printed and read."""
    for name, clause in clauses().items():
        assert name == clause.id == f"{clause.group}-{clause.id.split('-')[1]}"
        assert clause.title
        assert not clause.title.endswith(".")
        assert clause.text, name
        assert str(clause) == f"{name}: {clause.title}"


def test_the_clauses_cover_every_group_and_count_up():
    """Numbers inside a group run 1, 2, 3, so that a missing one is noticed."""
    numbers: dict[str, list[int]] = {}
    for clause in clauses().values():
        numbers.setdefault(clause.group, []).append(int(clause.id.split("-")[1]))
    assert list(numbers) == GROUPS
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values()), numbers


def test_the_clause_that_everybody_cites_says_what_it_says():
    """MASK-3 is the example of the docs; a renumbering would make them lie."""
    assert clauses()["MASK-3"].title == "a row with no visible key returns 0 and LSE -inf"


def test_the_table_of_contents_names_every_part_and_group():
    """Each part is linked, and lists exactly the groups that stand in it."""
    listed = {
        title: groups.split(", ") for title, groups in re.findall(r"^\| \[(.+?)\]\(#.+?\) \| (.+?) \|$", TEXT, re.M)
    }
    standing: dict[str, list[str]] = {}
    for part in re.split(r"^## ", TEXT, flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        standing[title] = list(dict.fromkeys(re.findall(r"^### ([A-Z]+)-", body, re.M)))
    assert listed == standing


def test_links_inside_the_document_lead_somewhere():
    """Clauses that a clause cites exist."""
    cited = set(re.findall(r"\(([A-Z]+-[0-9]+)\)", TEXT))
    assert cited
    assert cited <= set(clauses())


def test_the_document_stays_short():
    """One sitting: fewer than 400 lines, none wider than a screen."""
    lines = TEXT.splitlines()
    assert len(lines) < 400
    assert max(map(len, lines)) <= 140


def test_the_tolerance_belongs_to_this_version():
    """The constants carry the version, and the document states the same numbers."""
    assert SPEC_1_0.spec == SPEC_VERSION
    for number in (SPEC_1_0.element, SPEC_1_0.row, SPEC_1_0.values):
        assert f"{number:g} " in TEXT
    assert "whole | the tensor | rms(e) <= 1.5 max" in TEXT


@pytest.mark.parametrize(
    "heading", ["### MASK3: no dash", "### mask-3: small", "### MASK-0: zero", "### MASK-3:nothing"]
)
def test_a_heading_that_is_no_clause_is_an_error(heading):
    """A typo in an id does not make a clause disappear."""
    with pytest.raises(ValueError, match="GROUP-N"):
        parse(f"# Title\n\n{heading}\ntext\n")


def test_an_id_used_twice_is_an_error():
    """Two clauses of one id would hide each other."""
    with pytest.raises(ValueError, match="MASK-1 is there twice"):
        parse("### MASK-1: one\nx\n### MASK-1: two\ny\n")


def test_text_ends_at_the_next_heading():
    """A clause's text is its own, whatever follows."""
    found = parse("intro\n### A-1: one\nfirst\n\nsecond\n## Part\nbetween\n### A-2: two\nthird\n")
    assert {name: clause.text for name, clause in found.items()} == {"A-1": "first\n\nsecond", "A-2": "third"}


def test_an_unknown_version_is_an_error():
    """A certificate of a spec that is not here cannot be read as this one."""
    with pytest.raises(FileNotFoundError):
        clauses("0.9")


def test_reading_the_spec_needs_no_torch():
    """Reports and `--help` list clauses on machines without torch."""
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from attn_backends.conformance.spec import clauses; assert len(clauses()) > 60"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
