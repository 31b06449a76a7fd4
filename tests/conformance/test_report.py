"""Reports: made of a record alone, complete, escaped, and with the declared volume in every one of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.report.axes import axes
from attn_backends.conformance.report.clauses import clause_rows, most_failed
from attn_backends.conformance.report.headline import headline
from attn_backends.conformance.report.html import render_html
from attn_backends.conformance.report.json_report import ReportError, read_report, report_json
from attn_backends.conformance.report.junit import render_junit
from attn_backends.conformance.report.markdown import render_markdown
from attn_backends.conformance.report.picture import picture
from attn_backends.conformance.report.ratios import ratio_rows
from attn_backends.conformance.report.schema import SHIPPED, render_schema, report_schema, validate
from attn_backends.conformance.report.writing import FILES, write_reports
from attn_backends.conformance.spec import clauses
from tests.conformance.records import H200, NASTY, PLAIN, record, result, wide_record

NOT_RUN_100 = [result("NOT_RUN", PLAIN.replace(seed=seed), message="needs sm_100") for seed in range(12)]
FAILING = [result("FAIL"), result("SILENT_WRONG", PLAIN.replace(alibi=True), "refuse")]


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (record(result(), result("REFUSED", check="refuse"), *NOT_RUN_100, device=H200),
         ("my_fa 0.1.0: CONFORMS spec 1.0 full | 1 pass, 1 refused, 0 gaps, 12 not run (sm_100)"
          " | suite kill rate 61/61, controls 0/8 | NVIDIA H200")),
        (record(*FAILING, self_test=None),
         ("my_fa 0.1.0: DOES NOT CONFORM to spec 1.0 full | 1 SILENT_WRONG, 1 FAIL, 0 pass, 0 refused, 0 gaps, 0 not run"
          " | suite kill rate not measured here | cpu")),
        (record(only="oracle/*", gaps=({"id": "a"},)),
         ("my_fa 0.1.0: PARTIAL RUN PASSED, spec 1.0 full | 1 pass, 0 refused, 1 gap, 0 not run"
          " | suite kill rate 61/61, controls 0/8 | cpu")),
        (record(notes=("error: gap a has expired", "a remark")),
         ("my_fa 0.1.0: DOES NOT CONFORM to spec 1.0 full | 1 pass, 0 refused, 0 gaps, 1 error in notes, 0 not run"
          " | suite kill rate 61/61, controls 0/8 | cpu")),
        (record(result(), result("NOT_RUN", PLAIN.replace(seed=8), message="needs sm_80 or sm_90"), result("NOT_RUN", PLAIN.replace(seed=9), message="needs cpu")),
         ("my_fa 0.1.0: CONFORMS spec 1.0 full | 1 pass, 0 refused, 0 gaps, 2 not run (sm_80 or sm_90, cpu)"
          " | suite kill rate 61/61, controls 0/8 | cpu")),
        (record(result("REFUSED")),
         ("my_fa 0.1.0: DOES NOT CONFORM to spec 1.0 full | 0 pass, 1 refused, 0 gaps, 0 not run"
          " | suite kill rate 61/61, controls 0/8 | cpu")),
    ],
    ids=["conforms", "fails", "partial", "error note", "several devices", "nothing passed"],
)  # fmt: skip
def test_the_headline_says_it_all(made, line):
    """Verdict, counts, what was not run and where it could, the suite's strength, the device."""
    assert headline(made) == line


@pytest.mark.parametrize(("note", "good"), [("error: sinks is declared, and no case ran", False), ("a remark", True)])
def test_a_note_that_is_an_error_fails_the_run(note, good):
    """One truth: the record, the JSON of both kinds and the headline say the same."""
    made = record(notes=(note,))
    words = (made.conforms, made.to_json()["conforms"], report_json(made)["conforms"], ": CONFORMS" in headline(made))
    assert words == (good,) * 4


@pytest.mark.parametrize("made", [record(), wide_record(), record(result(ratios={"row": float("inf")}))], ids=["good", "wide", "infinite"])  # fmt: skip
def test_json_keeps_its_schema_and_reads_back(made, tmp_path):
    """Written, validated, read: the same record, but for numbers that JSON does not have."""
    write_reports(made, tmp_path)
    data = json.loads((tmp_path / "report.json").read_text())
    validate(data)
    again = read_report(tmp_path / "report.json")
    assert report_json(again) == data
    assert [one.outcome for one in again.results] == [one.outcome for one in made.results]
    assert data["headline"] == headline(made)


@pytest.mark.parametrize(
    ("path", "value"),
    [(("results", 0, "outcome"), "SKIPPED"), (("results", 0, "clauses"), ["MASK-99"]), (("level",), "huge"),
     (("numerics",), "rough"), (("extra",), 1), (("counts", "PASS"), -1), (("results", 0, "extra"), 1)],
    ids=str,
)  # fmt: skip
def test_the_schema_is_closed(path, value):
    """Outcomes, clauses, levels and keys that the suite does not know are refused."""
    data = json.loads(json.dumps(report_json(record())))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        validate(data)


def test_the_shipped_schema_is_up_to_date():
    """Outcomes, clauses and fields of the record stand in it; on a failure write `render_schema()` to the file."""
    jsonschema.Draft202012Validator.check_schema(report_schema())
    assert SHIPPED.read_text() == render_schema()


@pytest.mark.parametrize(
    ("text", "said"),
    [("{}", "schema None"), ("[1]", "not a conformance report"), ("{", "not a conformance report"),
     (json.dumps({"schema": "attn.conformance/1", "results": []}), "not a conformance report")],
    ids=["empty", "list", "torn", "half"],
)  # fmt: skip
def test_what_is_no_report_is_said_to_be_none(tmp_path, text, said):
    """The file is named, and so is the reason."""
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=r"old\.json: .*" + re.escape(said)):
        read_report(path)
    with pytest.raises(ReportError, match="No such file"):
        read_report(tmp_path / "absent.json")


@pytest.mark.parametrize("name", FILES)
def test_no_report_hides_the_volume(name):
    """Declaring little cannot look like success: what is declared stands in every report."""
    made = record(volume={"dtype": "{float32}", "head_dim": "{seventeen}"})
    assert "seventeen" in FILES[name](made)


@pytest.mark.parametrize("name", FILES)
def test_every_failure_comes_with_its_replay(name):
    """Each failing item can be run again from any report."""
    made = record(*FAILING)
    text = FILES[name](made)
    for one in FAILING:
        assert one.id in text
    assert "attn-backends conformance run my_fa --level full --only" in text or name == "report.json"


def test_markdown_starts_with_the_headline_and_the_worst():
    """First line the headline; then what to look at, SILENT_WRONG before every other outcome."""
    text = render_markdown(record(*FAILING))
    assert text.splitlines()[0] == headline(record(*FAILING))
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings[:3] == ["Clauses that fail most", "SILENT_WRONG (1)", "FAIL (1)"]


def test_the_clause_that_is_broken_stands_before_those_that_were_only_there():
    """An item names every clause that it shows; the one of which most items fail is where to look."""
    wrong = [result("FAIL", PLAIN.replace(seed=seed), clauses=("SCORE-1", "CAUSAL-1")) for seed in range(3)]
    right = [result("PASS", PLAIN.replace(seed=seed), clauses=("SCORE-1",)) for seed in range(3, 20)]
    rows = most_failed(record(*wrong, *right))
    assert [(row.id, row.failed, row.total) for row in rows] == [("CAUSAL-1", 3, 3), ("SCORE-1", 3, 20)]
    assert most_failed(record()) == []


def test_the_clause_table_is_whole():
    """Every clause of the spec has a row, those that nothing touched as well."""
    rows = {row.id: row for row in clause_rows(wide_record())}
    assert list(rows) == list(clauses())
    states = {name: rows[name].state for name in ("ALIBI-1", "SCORE-1", "REFUSE-1", "QUANT-1", "MERGE-1", "DECLARE-2")}
    assert states == {"ALIBI-1": "failed", "SCORE-1": "pass", "REFUSE-1": "failed", "QUANT-1": "not run",
                      "MERGE-1": "no case", "DECLARE-2": "refused"}  # fmt: skip


def test_the_matrix_tells_served_from_refused_failed_and_not_run():
    """One state per value; a value that is served somewhere is not called refused for another axis's sake."""
    cells = {(axis.name, cell.value): cell.state for axis in axes(wide_record()) for cell in axis.cells}
    assert cells["head_dim", "64"] == "pass"
    assert cells["sinks", "on"] == "refused"
    assert cells["alibi", "on"] == "failed"
    assert cells["kv_format", "scaled-fp8-e4m3"] == "not run"
    tiles = {
        (block.name, tile.cell.value): tile.state
        for block in picture(axes(wide_record())).blocks
        for tile in block.tiles
    }
    assert (tiles["alibi", "on"], tiles["alibi", "off"]) == ("failed", "mixed")


def test_no_tile_of_the_picture_lies_over_another():
    """Rectangles are apart, and inside the picture."""
    made = picture(axes(wide_record()))
    boxes = [(tile.x, tile.y, tile.x + tile.width, tile.y + 28) for block in made.blocks for tile in block.tiles]
    assert all(right <= made.width and bottom <= made.height for _, _, right, bottom in boxes)
    for number, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[:number]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top


def test_ratios_are_kept_by_rule():
    """The largest and where it was."""
    far = PLAIN.replace(seed=7)
    rows = ratio_rows(record(result(ratios={"row": 0.2}), result(case=far, ratios={"row": 0.9, "lse": 0.1})))
    assert [(row.rule, row.count, row.largest, row.item) for row in rows] == [
        ("row", 2, 0.9, f"value/{far.id}"), ("lse", 1, 0.1, f"value/{far.id}"),
    ]  # fmt: skip


@pytest.mark.parametrize("render", [render_html, render_markdown], ids=["html", "markdown"])
def test_what_is_rightly_refused_has_no_ratio(render):
    """A probe that was wrong past the selector says nothing of the backend; one that fails says it in every report."""
    ratios = {"out.row": 4.7e7}
    assert "4.7e+07" not in render(record(result(), result("REFUSED", check="probe-dtype", ratios=ratios)))
    assert "4.7e+07" in render(record(result(), result("FAIL", ratios=ratios)))
    assert "| inf |" in render_markdown(record(result("FAIL", ratios={"out.row": 1e308})))


def test_junit_counts_what_it_lists():
    """Failures, errors and skips as continuous integration counts them; notes that fail the run are cases too."""
    made = record(
        result(), *FAILING, result("CRASH", PLAIN.replace(seed=1)), result("TIMEOUT", PLAIN.replace(seed=2)),
        result("NOT_RUN", PLAIN.replace(seed=3), message=NASTY), result("REFUSED", PLAIN.replace(seed=4)), notes=("error: " + NASTY,),
    )  # fmt: skip
    suite = ET.fromstring(render_junit(made).encode()).find("testsuite")
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 8, "failures": 3, "errors": 2, "skipped": 1}
    assert len(suite.findall("testcase")) == 8
    assert len(suite.findall(".//failure")) == 3
    assert len(suite.findall(".//error")) == 2
    assert len(suite.findall(".//skipped")) == 1


class _Page(HTMLParser):
    """Elements, attributes and scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))


@pytest.mark.parametrize("made", [record(), wide_record(), record(result("FAIL", id=NASTY, message=NASTY), backend=NASTY, device={"name": NASTY}, volume={NASTY: NASTY}, notes=(f"error: {NASTY}", NASTY), environment={NASTY: NASTY}, gaps=({"id": NASTY, "reason": NASTY},))], ids=["good", "wide", "hostile"])  # fmt: skip
def test_the_page_is_alone_and_escaped(made):
    """No text of a backend becomes markup, no address is loaded, no control character is left."""
    text = render_html(made)
    page = _Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 2
    for _tag, attributes in page.elements:
        assert not any(name in ("src", "href", "srcset", "action") or name.startswith("on") for name in attributes)
    assert "alert(1)</script>" not in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\ud800-\udfff]|url\(|@import", text)
    text.encode()


def test_the_page_lists_the_worst_first_and_says_what_it_leaves_out(monkeypatch):
    """More items than are listed: the failing ones stay, the number of the others is named."""
    from attn_backends.conformance.report import html

    monkeypatch.setattr(html, "MOST", 2)
    page = render_html(record(*(result(case=PLAIN.replace(seed=seed)) for seed in range(5)), *FAILING))
    assert "5 more are only counted above" in page
    assert page.index('class="state failed">SILENT_WRONG') < page.index('class="state failed">FAIL')


def test_embedded_json_cannot_end_its_element():
    """Messages stand in a script element as JSON without a single angle bracket."""
    page = render_html(record(result("FAIL", message="</script><img src=x>")))
    inner = page.split('id="details">', 1)[1].split("</script>", 1)[0]
    assert "<" not in inner
    assert json.loads(inner)[0]["message"] == "</script><img src=x>"


def test_reports_are_written_whole(tmp_path, monkeypatch):
    """A renderer that fails leaves the file of the last run as it was."""
    write_reports(record(), tmp_path)
    before = (tmp_path / "report.json").read_bytes()
    monkeypatch.setattr("attn_backends.conformance.report.writing.os.replace", _no_space)
    with pytest.raises(OSError, match="space"):
        write_reports(record(*FAILING), tmp_path)
    assert (tmp_path / "report.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)


def _no_space(*_paths):
    raise OSError(28, "no space left")


def test_reports_need_no_torch():
    """A report of a GPU machine is read on a laptop."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from attn_backends.conformance.report import headline, html, json_report, junit, markdown, track, writing\n"
        "from attn_backends.conformance import certificate, gaps\n"
        "from attn_backends.conformance.scaffold import project\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_outcomes_all_have_a_colour():
    """A new outcome needs one."""
    from attn_backends.conformance.report.html import state_word

    assert {state_word(outcome) for outcome in Outcome} == {"failed", "warn", "not-run", "refused", "pass"}
