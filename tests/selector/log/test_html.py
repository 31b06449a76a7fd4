"""The page: self-contained, complete, and everything in it escaped."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser

import pytest

from attn_backends.selector.log import html
from attn_backends.selector.log.html import ReportExtraError, embedded, render_html
from tests.selector.log.records import candidate, many, reason, record, request

EVIL = """</script><script>alert(1)</script><img src=x onerror="alert(2)">'&<!--"""


class Page(HTMLParser):
    """Tags with their attributes, the text of the page, and the embedded JSON."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self.inside == "script" else self.text).append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _attributes in self.tags)

    @property
    def details(self) -> list[dict]:
        return json.loads(self.scripts[0])


def evil() -> dict:
    return record(
        backend=EVIL,
        source=EVIL,
        registry=EVIL,
        request={**request(), EVIL: EVIL},
        device={"kind": EVIL, "name": EVIL, "arch": [9, 0]},
        policy={EVIL: EVIL},
        environment={"driver": EVIL, "versions": {EVIL: EVIL}},
        candidates=[
            candidate(EVIL, "selected", version=EVIL, tier=EVIL, conversions=[EVIL]),
            candidate(EVIL, reasons=[reason(EVIL, EVIL, EVIL, hint=EVIL, source=EVIL)]),
        ],
        nearest=[{"backend": EVIL, "changes": [{"axis": EVIL, "got": EVIL, "want": EVIL}]}],
        time=EVIL, pid=1, rank=0, seq=0,
    )  # fmt: skip


def test_nothing_in_a_record_becomes_markup() -> None:
    """A name made of tags adds no tag: the page has the same elements as with a plain name."""
    page, plain = Page(render_html([evil()], title=EVIL)), Page(render_html([record(time="x", pid=1, rank=0, seq=0)]))
    assert page.count("script") == plain.count("script") == 2
    assert page.count("img") == 0
    assert not any(name.startswith("on") for _tag, attributes in page.tags for name in attributes)
    assert EVIL in "".join(page.text)
    assert page.details[0]["candidates"][1]["reasons"][0]["source"] == EVIL


@pytest.mark.parametrize("text", [EVIL, "]]>", "\u2028\u2029", "\ud800", "<!--<script>"])
def test_embedded_json_holds_no_markup_and_reads_back(text: str) -> None:
    """Whatever stands in it, no tag, comment or line separator does."""
    inside = embedded({"x": text})
    assert not set("<>&\u2028") & set(inside)
    assert json.loads(inside) == {"x": text}


def test_the_page_loads_nothing() -> None:
    """No address, import or link: it works from a mail attachment; a policy in the page forbids the rest."""
    page = render_html(many(20))
    assert not re.search(r"https?:|url\(|@import|<link|src=", page)
    assert "default-src 'none'" in page


def test_every_decision_and_refusal_is_on_the_page() -> None:
    """One row per decision, latest first; the details hold every candidate and every reason."""
    records = many(200)
    page = Page(render_html(records))
    rows = [attributes for tag, attributes in page.tags if tag == "tr" and "data-search" in attributes]
    assert len(rows) == len(page.details) == 200
    for shown, written in zip(page.details, reversed(records), strict=True):
        assert {one["name"] for one in shown["candidates"]} == {one["name"] for one in written["candidates"]}
        told = sum(len(one["reasons"]) for one in shown["candidates"])
        assert told == sum(len(one["reasons"]) for one in written["candidates"])


def test_the_matrix_finds_its_decisions() -> None:
    """A number of the matrix filters the table to exactly as many rows (ids are distinct here)."""
    page = Page(render_html(many(100)))
    searches = [attributes["data-search"] for tag, attributes in page.tags if "data-search" in attributes]
    cells = [attributes for tag, attributes in page.tags if "data-filter" in attributes]
    assert len(cells) > 50
    for cell in cells:
        count = int(str(cell["title"]).rsplit(": ", 1)[1])
        assert sum(str(cell["data-filter"]) in str(text).split() for text in searches) == count


def test_the_filters_example_finds_something() -> None:
    """It names a refusal of this very log, not of backends that are not there."""
    page = Page(render_html(many(100)))
    (placeholder,) = (attributes["placeholder"] for _tag, attributes in page.tags if "placeholder" in attributes)
    words = str(placeholder).partition(": ")[2].split()
    searches = [str(attributes["data-search"]).split() for _tag, attributes in page.tags if "data-search" in attributes]
    assert len(words) == 2
    assert any(all(word in found for word in words) for found in searches)


def test_the_bars_scale_and_their_words_do_not() -> None:
    """Text in a drawing that shrinks with the screen cannot be read on a narrow one."""
    page = Page(render_html(many(100)))
    assert page.count("svg") == 0
    shares = [attributes["style"] for _tag, attributes in page.tags if "--share" in (attributes.get("style") or "")]
    assert shares[0] == "--share:1.0000"
    assert len(shares) > 3


def test_rotated_heads_get_the_room_of_the_longest() -> None:
    """Short codes leave no empty band above the matrix."""
    told = record(candidates=[candidate("sdpa_flash", "selected"), candidate("flex", reasons=[reason("arch")])])
    (head,) = (attributes for tag, attributes in Page(render_html([told])).tags if tag == "thead" and attributes)
    assert head["style"] == "--longest:4"


def test_a_decision_logged_twice_is_one_row() -> None:
    """Its row says how often it was logged; the counts count both."""
    page = Page(render_html([record(), record()]))
    assert len(page.details) == 1
    assert "2" in page.text


def test_an_empty_log_is_a_page_too() -> None:
    """It says so, and shows no empty tables."""
    page = Page(render_html([]))
    assert "No decisions in this log" in page.text
    assert page.count("table") == 0


def test_a_very_long_log_lists_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit, rows are left out and the page says how many; the counts cover all."""
    monkeypatch.setattr(html, "MOST", 30)
    page = Page(render_html(many(100)))
    assert len(page.details) == 30
    text = "".join(page.text)
    assert "The latest 30 decisions are listed; 70 earlier ones are only counted above." in text


def test_without_jinja2_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra is named, not a module."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ReportExtraError, match=r"pip install '\.\[report\]'"):
        render_html([])
