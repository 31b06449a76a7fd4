"""Texts: rendered from the record, one line or aligned columns, safe to print."""

from __future__ import annotations

import shlex

import pytest

from attn_backends.selector.log.line import changes_phrase, info_line, record_text
from attn_backends.selector.log.phrase import device_phrase, request_phrase
from tests.selector.log.records import candidate, many, reason, record, request, unserved

LINES = [
    (
        record(),
        ('attn backend=sdpa_flash source=priority request="bf16 bshd prefill b2 h32/8 s512x512 d128 causal" '
        'device="H200 sm_90" rejected=1 id=1f2e3d4c5b6a7988'),
    ),
    (
        record(backend="eager", source="explicit", candidates=[candidate("eager", "selected", conversions=["repeat_kv"])]),
        ('attn backend=eager source=explicit tier=reference request="bf16 bshd prefill b2 h32/8 s512x512 d128 causal" '
        'device="H200 sm_90" converts=repeat_kv rejected=0 id=1f2e3d4c5b6a7988'),
    ),
    (
        unserved(),
        ('attn backend=none request="bf16 bshd prefill b2 h32/8 s512x512 d128 causal" device="H200 sm_90" '
        'nearest="flex: head_dim 320 -> 256" rejected=1 id=ffffffffffffffff'),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("written", "line"), LINES, ids=["served", "reference", "unserved"])
def test_the_info_line(written: dict, line: str) -> None:
    """Short, in a fixed order, and it says what matters: reference tier, conversions, the nearest way out."""
    assert info_line(written) == line


def test_the_info_line_splits_into_keys_and_values() -> None:
    """`key=value` words that any logfmt reader or shell can split."""
    for one in many(50):
        _attn, *words = shlex.split(info_line(one))
        assert all("=" in word for word in words)
        assert dict(word.split("=", 1) for word in words)["id"] == one["id"]


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[31mred", 'quo"te', "a=b", "\u2028"])
def test_no_text_breaks_the_line_or_steers_the_terminal(text: str) -> None:
    """A backend's name or a field's value is printed, not obeyed."""
    odd = record(backend=text, request={**request(), "later": text}, candidates=[candidate(text, "selected")])
    line = info_line(odd)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert all(part.isprintable() for part in record_text(odd).split("\n"))


REQUESTS = [
    ({}, "bf16 bshd prefill b2 h32/8 s512x512 d128 causal"),
    ({"dtype": "float16", "layout": "thd", "varlen": True, "total_q": 9, "total_k": 9},
     "fp16 thd prefill b2 h32/8 s512x512 d128 total=9 causal varlen"),
    ({"head_dim_qk": 192}, "bf16 bshd prefill b2 h32/8 s512x512 d192+128 causal"),
    ({"phase": "decode", "seq_q": 1, "page_size": 16, "kv_layout": "HND"},
     "bf16 bshd decode b2 h32/8 s1x512 d128 causal kv_layout=HND page_size=16"),
    ({"window_left": 511, "softcap": 50.0, "sinks": True},
     "bf16 bshd prefill b2 h32/8 s512x512 d128 window=511,-1 causal softcap=50.0 sinks"),
    ({"k_format": "scaled-int8", "v_format": "scaled-int8", "k_granularity": "per_head"},
     "bf16 bshd prefill b2 h32/8 s512x512 d128 kv_format=scaled-int8 kv_scales=per_head,none causal"),
    ({"needs_backward": True, "return_lse": True, "causal_alignment": "top_left"},
     "bf16 bshd prefill b2 h32/8 s512x512 d128 causal diagonal=top_left lse backward"),
    ({"q_strides": (1 << 16, 128, 4096, 1)}, "bf16 bshd prefill b2 h32/8 s512x512 d128 strided causal"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "phrase"), REQUESTS, ids=[phrase for _fields, phrase in REQUESTS])
def test_request_phrase(fields: dict, phrase: str) -> None:
    """The usual shape first, then only what is special about this call."""
    assert request_phrase(request(**fields)) == phrase


def test_a_field_of_the_future_appears_by_itself() -> None:
    """A property that this version has never heard of is shown, not dropped."""
    assert request_phrase({**request(), "tree_mask": "ragged", "fancy": True}).endswith("causal tree_mask=ragged fancy")


@pytest.mark.parametrize(
    ("device", "phrase"),
    [
        ({"kind": "cuda", "name": "H200", "arch": [9, 0]}, "H200 sm_90"),
        ({"kind": "cuda", "name": "RTX 5090", "arch": [12, 0]}, "RTX 5090 sm_120"),
        ({"kind": "rocm", "name": "MI300X", "arch": [9, 4]}, "MI300X gfx942"),
        ({"kind": "rocm", "name": "RX 9999", "arch": [99, 0]}, "RX 9999 99.0"),
        ({"kind": "cuda", "name": "sm_75", "arch": [7, 5]}, "sm_75"),
        ({"kind": "cpu", "name": "cpu", "arch": None}, "cpu"),
        ({}, "?"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_device_phrase(device: dict, phrase: str) -> None:
    """Name and architecture, each once, in the words of the device's own world."""
    assert device_phrase(device) == phrase


def test_the_whole_story() -> None:
    """Winner, inputs, every candidate with its reasons in rank order, what would fit; in aligned columns."""
    told = record(
        policy={"prefer": ["sdpa_flash"]},
        candidates=[
            candidate(
                "flex", reasons=[reason(), reason("load_error", message="ImportError: a\n  b", hint="install it")]
            ),
            candidate("sdpa_math", "outranked", measured_ms=0.25, conversions=["repeat_kv"]),
            candidate("sdpa_flash", "selected"),
        ],
    )
    assert record_text(told) == (
        """\
decision 1f2e3d4c5b6a7988
  backend   sdpa_flash 2.13.0 (standard, exact), by priority: highest declared priority
  request   bf16 bshd prefill b2 h32/8 s512x512 d128 causal
  device    H200 (cuda, sm_90, driver 570.86)
  policy    prefer=(sdpa_flash)
  versions  torch 2.13.0, triton 3.4.0
  registry  00ff00ff00ff00ff

candidates
  1  sdpa_flash 2.13.0  selected
  2  sdpa_math 2.13.0   outranked             measured 0.25 ms
                                              converts: repeat_kv
  -  flex 2.13.0        rejected: capability  head_dim: got 320, want {64, 128}  <- some.toml [[capability]] 1
                                              ImportError: a
                                                b (install it)  <- some.toml [[capability]] 1

would fit after
  flex  head_dim 320 -> 256"""
    )


@pytest.mark.parametrize(
    ("forced", "words"),
    [
        (None, "none: no backend fits"),
        ({"name": "flex", "source": "explicit"}, "none: flex is forced and does not fit"),
    ],
    ids=["nothing fits", "forced"],
)
def test_why_there_is_no_backend(forced: dict | None, words: str) -> None:
    """A forced backend that does not fit is named; it is not swapped, so nothing else is."""
    assert record_text(unserved(forced=forced)).splitlines()[1].strip() == f"backend   {words}"


def test_what_the_call_asks_for_is_told_before_the_hardware() -> None:
    """`softcap` is the news; that the box is for other devices as well goes last."""
    told = record(candidates=[candidate("flex", reasons=[reason("device"), reason("arch"), reason("softcap")])])
    text = record_text(told)
    assert text.index("softcap: got") < text.index("device: got") < text.index("arch: got")


@pytest.mark.parametrize(
    ("got", "words"),
    [(["foo"], "drop the unknown field foo"), (["foo", "bar"], "drop the unknown fields foo, bar")],
    ids=["one", "two"],
)
def test_a_field_of_the_future_is_dropped_not_set_to_nothing(got: list[str], words: str) -> None:
    """`unknown_feature (foo) -> ()` is no advice."""
    change = {"axis": "unknown_feature", "got": got, "want": []}
    assert changes_phrase({"backend": "flex", "changes": [change]}) == words


def test_every_reason_and_candidate_of_the_record_is_in_the_text() -> None:
    """Text cannot say less than the record does."""
    for one in many(50):
        text = record_text(one)
        for listed in one["candidates"]:
            assert listed["name"] in text
            assert all(why["message"] in text for why in listed["reasons"])
