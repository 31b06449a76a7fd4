"""Known gaps: the file beside the manifest is judged as strictly as the kernel."""

from __future__ import annotations

import datetime as dt
import re

import pytest

from attn_backends.conformance.case import Case
from attn_backends.conformance.gap_errors import judge_gaps
from attn_backends.conformance.gaps import read_gaps
from attn_backends.conformance.plan import plan
from attn_backends.device import Device
from attn_backends.errors import ManifestError
from attn_backends.registry.registry import Registry, default_registry
from attn_backends.request import Request
from attn_backends.selector.select import select
from tests.conformance.records import record, result
from tests.plugins.install import HERE

CPU = Device(kind="cpu", name="cpu")
LONG = Case(seq_q=17, seq_k=200, head_dim=40, head_dim_v=40)
ODD = LONG.replace(seq_k=33, head_dim=41, head_dim_v=41)
TODAY = dt.date(2026, 6, 1)
BOX_LONG, BOX_ODD = "seq_k = { min = 100 }", "head_dim = { mod = 8, rest = 1 }"


def gap(name, when, *, backend="good_fa", expires="2027-01-01"):
    return (
        f'[[gap]]\nid = "{name}"\nbackend = "{backend}"\nreason = "wrong there"\nevidence = "https://example.org/{name}"\n'
        f'expires = "{expires}"\n[gap.when]\n{when}\n'
    )


def known(case=LONG):
    """A case that a gap refuses, and whose kernel is indeed wrong."""
    return result("REFUSED", case, "probe-gap")


def closed(case=LONG):
    """A case that a gap refuses, and whose kernel is right."""
    return result("UNDERCLAIM", case, "probe-gap")


@pytest.fixture
def good_fa_with(tmp_path):
    """good_fa, registered, with this attn-gaps.toml."""

    def make(text):
        source = HERE / "good_fa" / "good_fa_pkg" / "backend.toml"
        (tmp_path / "backend.toml").write_bytes(source.read_bytes())
        if text is not None:
            (tmp_path / "attn-gaps.toml").write_text(text)
        return default_registry().register(tmp_path / "backend.toml")

    yield make
    default_registry().unregister("good_fa")


def test_without_a_file_nothing_changes(good_fa_with):
    """The same record."""
    made = record()
    assert judge_gaps(made, good_fa_with(None), CPU) is made


@pytest.mark.parametrize(
    ("text", "results", "said"),
    [
        (gap("long", BOX_LONG), [known()], []),
        (gap("odd", BOX_ODD), [known(ODD)], []),
        (gap("long", BOX_LONG), [closed()], ["gap long passes (probe-gap/"]),
        (gap("long", BOX_LONG), [known(), closed(LONG.replace(seed=1))], ["gap long passes (probe-gap/"]),
        (gap("long", BOX_LONG), [], ["gap long matches no case"]),
        (gap("long", BOX_LONG, expires="2026-05-31"), [known()], ["gap long has expired (2026-05-31)"]),
        (gap("long", BOX_LONG, expires="2026-06-01"), [known()], []),
        (gap("long", BOX_LONG, expires="soon"), [known()], ["gap long has expired (soon)"]),
        (gap("long", BOX_LONG) + gap("odd", BOX_ODD), [known()], ["gap odd matches no case"]),
        (gap("long", BOX_LONG) + gap("odd", BOX_ODD), [known(), closed(ODD)], ["gap odd passes"]),
        (gap("x", BOX_ODD, backend="other_fa") + gap("long", BOX_LONG), [closed()], ["gap long passes"]),
        (gap("other", BOX_LONG, backend="other_fa"), [], []),
    ],
    ids=["known", "modulo", "passes", "one passes", "no case", "expired", "last day", "no date", "two, one without a case", "two, one passes",
         "behind another's", "another's"],
)  # fmt: skip
def test_a_wrong_gap_fails_the_run(good_fa_with, text, results, said):
    """An unexpected pass, a gap without a case, one past its day: each is an error note, and names its gap."""
    made = judge_gaps(record(result(), *results), good_fa_with(text), CPU, today=TODAY)
    found = made.errors
    assert len(found) == len(said)
    assert all(note.startswith(start) for note, start in zip(found, said, strict=True)), found
    assert made.conforms is not bool(said)


def test_a_partial_run_asks_no_gap_for_its_case(good_fa_with):
    """It may be among the items that were left out."""
    made = judge_gaps(record(result(), only="oracle"), good_fa_with(gap("long", BOX_LONG)), CPU, today=TODAY)
    assert made.errors == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [(gap("a", "sek_k = { min = 1 }"), "did you mean seq_k"), ("[[gap]]\nid = 'a'\nbackend = 'good_fa'", "missing when")],
    ids=["unknown axis", "missing keys"],
)  # fmt: skip
def test_an_illegal_file_fails_the_run(good_fa_with, text, said):
    """With file, entry and what is legal."""
    made = judge_gaps(record(result(check="oracle"), known()), good_fa_with(text), CPU)
    (note,) = made.errors
    assert said in note
    assert "attn-gaps.toml [[gap]] 1" in note
    assert not made.conforms


@pytest.mark.parametrize(
    ("text", "said"),
    [("[[gap]]\nid = 'a", "not TOML: "), ("gap = 3", "write one [[gap]] table per entry"), ("gap = ['a']", "write one [[gap]] table per entry")],
    ids=["torn", "a number", "texts"],
)  # fmt: skip
def test_a_file_that_is_none_stops_the_suite_before_it_starts(good_fa_with, text, said):
    """With the file's name, from every door: what plans, what reads."""
    manifest = good_fa_with(text)
    for read in (read_gaps, lambda one: plan(one, "quick", CPU)):
        with pytest.raises(ManifestError, match=re.escape(said)) as caught:
            read(manifest)
        assert "/attn-gaps.toml" in str(caught.value)


def test_the_selector_refuses_where_the_gap_is(good_fa_with):
    """One file, two readers: outside its box the backend serves, inside it is refused as `gap`."""
    manifest = good_fa_with(gap("long", BOX_LONG))
    registry = Registry(builtin=False, autoload=False)
    registry.register(manifest.folder / "backend.toml")
    sizes = {"dtype": "float32", "seq_q": 8, "num_q_heads": 2, "num_kv_heads": 2, "head_dim_qk": 16, "head_dim_v": 16}
    short, long = (select(Request(**sizes, seq_k=length), device=CPU, registry=registry) for length in (99, 100))
    assert short.backend == "good_fa"
    assert [reason.code for reason in long.candidates[0].reasons] == ["gap"]
