"""The page: self-contained, whole, and safe whatever stands in a file."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from attn_backends.bench.page import render_page
from attn_backends.bench.plot import panels
from tests.bench.files import results

LENGTHS = (512, 1024, 4096)


class Elements(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def prefill():
    """Two backends over three lengths, one of them not everywhere; a third that was refused."""
    refused = {"status": "refused", "why": "head_dim: got 128, want {64}", "codes": ["head_dim"]}
    return results(
        "prefill",
        {f"d128 s{s} causal": {"ours": 0.1 * s / 512, **({"theirs": 0.2 * s / 512} if s > 512 else {}), "none": refused} for s in LENGTHS},
    )  # fmt: skip


def test_the_page_loads_nothing():
    """No address but namespaces and the policy; no external script, style, image or font."""
    page = render_page(prefill())
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?://", page)
    assert "default-src 'none'" in page


def test_every_figure_is_on_the_page():
    """Values of the table, refusals with their reason, commands, versions, the void run's reason."""
    made = prefill()
    made.head["void"] = "void: a peer was slow"
    page = render_page(made)
    value = made.cells["d128 s4096 causal"]["results"]["ours"]["tflops"]
    for text in (
        f"{value:.0f}",
        "head_dim: got 128, want {64}",
        "attn-backends bench --suite prefill",
        "2.11.0",
        "void: a peer was slow",
    ):
        assert text in page
    assert "fastest on 3 of 3" in page


def test_a_line_goes_through_its_cells_and_the_roof_lies_above():
    """Points from left to right in the order of lengths, none above the roofline, gaps left out."""
    (panel,) = panels(prefill())
    own, share = panel.charts
    ours, theirs = own.lines
    assert [len(ours.marks), len(theirs.marks)] == [3, 2]
    assert [mark.x for mark in ours.marks] == sorted(mark.x for mark in ours.marks)
    roof = min(float(y) for y in re.findall(r",([\d.]+)", own.roof))
    assert all(mark.y > roof for line in own.lines for mark in line.marks)
    assert [tick.label for tick in own.across] == ["512", "1k", "4k"]
    assert share.unit == "% of the roofline"
    assert share.up[-1].label == "100"


def test_named_shapes_are_bars_in_their_groups():
    """A group per shape, the best marked, lengths in proportion to the figures."""
    made = results(
        "decode", {"b64 c8192 h32/8 d128 dense": {"a": 0.5, "b": 1.0}, "b1 c32768 h32/8 d128 dense": {"b": 0.1}}
    )
    (panel,) = panels(made)
    first, second = panel.charts[0].groups
    assert [bar.backend for bar in first.bars] == ["a", "b"]
    assert [bar.best for bar in first.bars] == [True, False]
    assert abs(first.bars[0].width / first.bars[1].width - 2) < 1e-9
    assert len(second.bars) == 1
    assert second.y > first.end


def test_names_and_errors_cannot_break_out_of_the_page():
    """Markup in names and messages is text."""
    evil = "<script>alert(1)</script>\"'"
    made = results("prefill", {"d128 s512 causal": {evil: 1.0, "b": {"status": "error", "why": evil}}})
    made.head |= {"void": evil, "commands": [evil], "versions": {evil: evil}}
    told = {"d128 s512 causal": {"a": 1.0, "b": {"status": "error", "why": "x"}}}
    plain = Elements(render_page(results("prefill", told, void="x", versions={"x": "y"}))).found
    assert [tag for tag, _ in Elements(render_page(made)).found] == [tag for tag, _ in plain]


def test_a_file_without_any_time_is_a_page_too():
    """Nothing timed, nothing drawn, the reasons listed."""
    page = render_page(results("prefill", {"d128 s512 causal": {"a": {"status": "out_of_memory", "why": "80 GiB"}}}))
    assert "Nothing was timed" in page
    assert "80 GiB" in page
