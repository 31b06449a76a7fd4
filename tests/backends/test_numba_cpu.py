"""numba_cpu says what eager says in float64, whatever lies in memory, from several threads, with and without its cache."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attn_backends

pytest.importorskip("numba")

from hypothesis import given, settings
from hypothesis import strategies as st

from attn_backends.backends.numba_cpu import blas, compiling
from attn_backends.backends.numba_cpu.flags import (
    BOTTOM_RIGHT,
    LEFT,
    NUMBERS,
    RIGHT,
    T_FIRST_HEAD,
    T_FIRST_ROW,
    T_HEADS,
    T_KV_HEAD,
    T_ROWS,
    T_SEQUENCE,
)
from attn_backends.backends.numba_cpu.numbers import exp2, half_as_float, tanh
from attn_backends.backends.numba_cpu.scores import stretch
from attn_backends.backends.numba_cpu.tasks import TILE_ROWS, Span, dealt, tasks_of
from attn_backends.backends.numba_cpu.tile import TILE_KEYS

pytestmark = pytest.mark.usefixtures("two_threads")
LIMITS = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
PAGE = 16

Drawn = tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]


@pytest.fixture(autouse=True, scope="module")
def _blas_has_two_threads() -> Iterator[None]:
    """Whatever the run gives a worker: what is put back afterwards must not be what is set inside."""
    before = [(library, library.get_num_threads()) for library in blas._libraries()]
    for library, _ in before:
        library.set_num_threads(2)
    yield
    for library, threads in before:
        library.set_num_threads(threads)


def dense(
    seq_q: int = 40,
    seq_k: int = 50,
    heads: int = 4,
    kv_heads: int = 2,
    width: int = 24,
    width_v: int = 40,
    batch: int = 2,
) -> Drawn:
    q = torch.randn(batch, seq_q, heads, width)
    return q, torch.randn(batch, seq_k, kv_heads, width), torch.randn(batch, seq_k, kv_heads, width_v), {}


def packed() -> Drawn:
    starts_q, starts_k = (0, 1, 1, 30, 170), (0, 5, 9, 9, 300)
    q, k, v = torch.randn(175, 6, 16), torch.randn(305, 2, 16), torch.randn(305, 2, 16)
    more = {
        "layout": "thd", "cu_seqlens_q": _ints(*starts_q), "cu_seqlens_k": _ints(*starts_k), "max_seqlen_q": 140,
        "max_seqlen_k": 291,
    }  # fmt: skip
    return q, k, v, more


def paged(kv_layout: str = "NHD", seq_q: int = 1) -> Drawn:
    lengths = (1, 17, 300)
    shape = (64, PAGE, 2, 24) if kv_layout == "NHD" else (64, 2, PAGE, 24)
    table = torch.full((3, 20), 2**31 - 1, dtype=torch.int32)
    for b, length in enumerate(lengths):
        used = -(-length // PAGE)
        table[b, :used] = torch.randperm(64)[:used]
    more = {"block_table": table, "seq_lens": _ints(*lengths), "kv_layout": kv_layout}
    return torch.randn(3, seq_q, 14, 24), torch.randn(shape), torch.randn(shape), more


def _ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _blocks(queries: int, keys: int) -> attn_backends.BlockMask:
    shown = torch.rand(2, 1, -(-queries // 16), -(-keys // 16)) < 0.6
    return attn_backends.BlockMask(shown, 16, torch.rand(queries, keys) < 0.8)


CASES: dict[str, Callable[[], Drawn]] = {
    "plain": dense,
    "one query, a group of seven": lambda: dense(seq_q=1, heads=14),
    "few queries, more heads than a tile has rows": lambda: dense(seq_q=3, heads=100, kv_heads=1),
    "a tile exactly": lambda: dense(seq_q=TILE_ROWS, seq_k=TILE_KEYS),
    "a tile and one": lambda: dense(seq_q=TILE_ROWS + 1, seq_k=2 * TILE_KEYS + 1),
    "no keys": lambda: dense(seq_k=0),
    "no queries": lambda: dense(seq_q=0),
    "width 1": lambda: dense(width=1, width_v=1),
    "packed": packed,
    "pages": paged,
    "pages, heads first": lambda: paged("HND"),
    "pages, several new tokens": lambda: paged(seq_q=5),
}
MASKS: dict[str, Callable[[Drawn], dict[str, Any]]] = {
    "full": lambda _: {},
    "causal": lambda _: {"causal": True},
    "causal from the first key": lambda _: {"causal": True, "causal_alignment": "top_left"},
    "window": lambda _: {"causal": True, "window_left": 20},
    "window on both sides": lambda _: {"window_left": 7, "window_right": 3},
    "softcap": lambda _: {"causal": True, "softcap": 3.0},
    "negative scale": lambda _: {"softmax_scale": -0.7},
    "sinks": lambda drawn: {"causal": True, "sinks": torch.randn(_heads(drawn))},
    "alibi": lambda drawn: {"causal": True, "alibi_slopes": torch.rand(_heads(drawn))},
}


def _heads(drawn: Drawn) -> int:
    return drawn[0].shape[-2]


def compare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: dict[str, Any], limit: float) -> None:
    """Output and LSE against eager on the same numbers in float64."""
    out, lse = attn_backends.attention(q, k, v, return_lse=True, backend="numba_cpu", **given)
    wide = {
        name: value.double()
        if isinstance(value, torch.Tensor) and name == "attn_mask" and value.is_floating_point()
        else value
        for name, value in given.items()
    }
    right, right_lse = attn_backends.attention(
        q.double(), k.double(), v.double(), return_lse=True, backend="eager", **wide
    )
    assert out.dtype == q.dtype
    assert torch.equal(torch.isneginf(lse), torch.isneginf(right_lse))
    scale = max(1.0, float(right.abs().max())) if right.numel() else 1.0
    assert torch.allclose(out.double(), right, rtol=0, atol=limit * scale)
    seen = ~torch.isneginf(lse)
    assert torch.allclose(lse[seen].double(), right_lse[seen].double(), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("case", CASES)
def test_every_mask_on_every_memory(case: str, mask: str) -> None:
    """In float32."""
    torch.manual_seed(0)
    drawn = CASES[case]()
    compare(*drawn[:3], drawn[3] | MASKS[mask](drawn), LIMITS[torch.float32])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_16_bits_are_read_as_what_they_are(case: str, dtype: torch.dtype) -> None:
    """Every kind of memory, subnormal numbers among the others."""
    torch.manual_seed(1)
    q, k, v, more = CASES[case]()
    v[..., ::3] *= 1e-6
    compare(*(t.to(dtype) for t in (q, k, v)), more | {"causal": True}, LIMITS[dtype])


@pytest.mark.parametrize("shape", [(2, 4, 40, 50), (1, 1, 40, 50), (1, 4, 1, 50), (40, 1), (2, 1, 40, 1)], ids=str)
@pytest.mark.parametrize("kind", ["bool", "float32", "float16"])
def test_masks_in_memory_broadcast(kind: str, shape: tuple[int, ...]) -> None:
    """Bool, and float with -inf and the lowest number, over any dims."""
    torch.manual_seed(2)
    dtype = torch.float32 if kind == "bool" else getattr(torch, kind)
    q, k, v = (t.to(dtype) for t in dense()[:3])
    mask = torch.rand(shape) < 0.7
    if kind != "bool":
        hidden = torch.randn(shape).to(dtype).masked_fill(~mask, float("-inf"))
        mask = hidden.masked_fill(torch.rand(shape) < 0.1, torch.finfo(dtype).min)
    compare(q, k, v, {"attn_mask": mask, "causal": True}, LIMITS[dtype])


def test_a_block_mask_with_partial_blocks() -> None:
    """Blocks and the mask inside them."""
    torch.manual_seed(3)
    compare(*dense()[:3], {"block_mask": _blocks(40, 50), "window_left": 30}, LIMITS[torch.float32])


@pytest.mark.parametrize("out_dtype", ["float16", "bfloat16", "float64"])
def test_the_output_may_have_a_dtype_of_its_own(out_dtype: str) -> None:
    """Rounded once, from float32."""
    q, k, v, _ = dense()
    whole = attn_backends.attention(q, k, v, backend="numba_cpu")
    other = attn_backends.attention(q, k, v, backend="numba_cpu", out_dtype=out_dtype)
    assert torch.equal(other, whole.to(getattr(torch, out_dtype)))


def test_strides_change_nothing() -> None:
    """Transposed, with room between rows, every second element, expanded heads: the same bits, and inputs untouched."""
    q, k, v, _ = dense(kv_heads=1)
    k, v = k.expand(-1, -1, 2, -1), v.expand(-1, -1, 2, -1)
    right = attn_backends.attention(q, k.contiguous(), v.contiguous(), causal=True, backend="numba_cpu")
    room = torch.zeros(*q.shape[:-1], 2 * q.shape[-1] + 3)
    room[..., : 2 * q.shape[-1] : 2] = q
    heads_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    for other in (room[..., : 2 * q.shape[-1] : 2], heads_first):
        before = other.clone()
        assert torch.equal(attn_backends.attention(other, k, v, causal=True, backend="numba_cpu"), right)
        assert torch.equal(other, before)


def test_a_sequence_is_the_same_beside_any_other() -> None:
    """Batch mates change no bit."""
    q, k, v, _ = dense(batch=3, seq_q=130, seq_k=300)
    whole = attn_backends.attention(q, k, v, causal=True, backend="numba_cpu")
    for b in range(3):
        alone = attn_backends.attention(*(t[b : b + 1] for t in (q, k, v)), causal=True, backend="numba_cpu")
        assert torch.equal(alone[0], whole[b])


def test_calls_of_several_threads_take_turns() -> None:
    """The same bits, and BLAS has as many threads afterwards as before."""
    drawn = [dense(seq_q=70 + n, seq_k=200) for n in range(8)]
    before = [library.get_num_threads() for library in blas._libraries()]

    def call(one: Drawn) -> torch.Tensor:
        return attn_backends.attention(*one[:3], causal=True, backend="numba_cpu")

    right = [call(one) for one in drawn]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert all(map(torch.equal, pool.map(call, drawn), right))
    assert [library.get_num_threads() for library in blas._libraries()] == before


def test_blas_gets_its_threads_back_after_an_error() -> None:
    """Whatever happens inside."""
    before = [library.get_num_threads() for library in blas._libraries()]
    assert before
    with pytest.raises(ZeroDivisionError), blas.in_turn():
        raise ZeroDivisionError([library.get_num_threads() for library in blas._libraries()])
    assert [library.get_num_threads() for library in blas._libraries()] == before


def test_blas_has_one_thread_inside() -> None:
    """So that tasks do not fight for cores."""
    with blas.in_turn():
        assert {library.get_num_threads() for library in blas._libraries()} == {1}


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=4),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    band=st.tuples(st.sampled_from([-1, 0, 50]), st.sampled_from([-1, 0, 5]), st.booleans()),
)
def test_every_row_of_every_head_is_in_one_task(
    lengths: list[tuple[int, int]], kv_heads: int, group: int, band: tuple[int, int, bool]
) -> None:
    """None twice, none left out, each with its own KV head, no task larger than a tile where it holds several heads."""
    spans = [Span(entry_q=b, first_q=0, seq_q=a, entry_k=b, first_k=0, seq_k=c) for b, (a, c) in enumerate(lengths)]
    seen = []
    for task in tasks_of(spans, kv_heads, group, band):
        heads = range(task[T_FIRST_HEAD], task[T_FIRST_HEAD] + task[T_HEADS])
        rows = range(task[T_FIRST_ROW], task[T_FIRST_ROW] + task[T_ROWS])
        assert {head // group for head in heads} == {task[T_KV_HEAD]}
        assert len(heads) * len(rows) <= TILE_ROWS or len(heads) == 1
        seen += [(task[T_SEQUENCE], head, row) for head in heads for row in rows]
    wanted = [
        (b, head, row) for b, (a, _) in enumerate(lengths) for head in range(kv_heads * group) for row in range(a)
    ]
    assert sorted(seen) == wanted


@pytest.mark.parametrize(("seq_q", "seq_k"), [(200, 3), (3, 200), (5, 0), (1, 1)])
@pytest.mark.parametrize("bottom_right", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (0, 0), (0, 2**31), (2**31, 0), (7, -1)], ids=str)
def test_no_window_reaches_past_the_keys(window: tuple[int, int], bottom_right: bool, seq_q: int, seq_k: int) -> None:
    """Queries whose window stands behind the last key read nothing: memory there belongs to others."""
    asked = np.zeros(NUMBERS, np.int64)
    asked[LEFT], asked[RIGHT], asked[BOTTOM_RIGHT] = *window, bottom_right
    for i in range(seq_q):
        first, end = stretch(asked, i, seq_q, seq_k)
        assert 0 <= first <= end <= seq_k


def test_a_window_behind_the_last_page_looks_up_no_page() -> None:
    """What the table holds there is no page; rows that see no key are 0."""
    q, k, v, more = paged(seq_q=150)
    compare(q, k, v, more | {"window_left": 0, "causal_alignment": "top_left"}, LIMITS[torch.float32])


@pytest.mark.parametrize("seq_k", [5, TILE_KEYS + 5])
@pytest.mark.parametrize("place", ["query", "keys", "sink", "slope"])
def test_what_is_not_a_number_is_not_taken_for_nothing(place: str, seq_k: int) -> None:
    """A row of which every score is NaN is NaN, as eager's is, not the 0 of a row without keys."""
    q, k, v, _ = dense(seq_q=3, seq_k=seq_k, kv_heads=4)
    sinks, slopes = torch.zeros(4), torch.ones(4)
    {"query": q[:, :, 1], "keys": k[:, :, 1], "sink": sinks[1:2], "slope": slopes[1:2]}[place].fill_(float("nan"))
    more = {"sink": {"sinks": sinks}, "slope": {"alibi_slopes": slopes}}.get(place, {})
    found = attn_backends.attention(q, k, v, backend="numba_cpu", return_lse=True, **more)
    right = attn_backends.attention(q, k, v, backend="eager", return_lse=True, **more)
    for one, other in zip(found, right, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.allclose(one, other, atol=1e-5, equal_nan=True)
    assert found[0][:, :, 1].isnan().all()


@pytest.mark.parametrize("hands", [1, 2, 3, 7])
def test_each_thread_gets_its_share_of_the_long_tasks(hands: int) -> None:
    """Every task once, and no stretch of them with much more work than another."""
    spans = [Span(entry_q=0, first_q=0, seq_q=4096, entry_k=0, first_k=0, seq_k=4096)]
    tasks = tasks_of(spans, 8, 1, (-1, 0, True))
    found = dealt(tasks, hands)
    assert sorted(map(tuple, found)) == sorted(map(tuple, tasks))
    work = [int((part[:, T_FIRST_ROW] + TILE_ROWS).sum()) for part in np.array_split(found, hands)]
    assert max(work) < 1.1 * min(work)
    assert dealt(tasks[:0], hands).shape == tasks[:0].shape


def test_powers_and_tanh_are_as_near_as_they_say() -> None:
    """Against float64; NaN stays NaN, -inf is no weight."""
    x = np.linspace(-126, 2, 20001, dtype=np.float32)
    found = np.array([exp2(one) for one in x], dtype=np.float64)
    assert np.max(np.abs(found / np.exp2(x.astype(np.float64)) - 1)) < 3e-7
    y = np.linspace(-12, 12, 20001, dtype=np.float32)
    found = np.array([tanh(one) for one in y], dtype=np.float64)
    assert np.max(np.abs(found - np.tanh(y.astype(np.float64)))) < 4e-7
    assert exp2(np.float32(-np.inf)) == 0
    assert np.isnan(exp2(np.float32(np.nan)))
    assert np.isnan(tanh(np.float32(np.nan)))


def test_every_float16_is_read_right() -> None:
    """All 65,536 of them."""
    from numba import njit

    @njit
    def convert(bits: Any, into: Any) -> None:
        for i in range(bits.shape[0]):
            into[i] = half_as_float(bits[i])

    bits = np.arange(2**16, dtype=np.uint16)
    into = np.empty(2**16, np.float32)
    convert(bits, into)
    np.testing.assert_array_equal(into, bits.view(np.float16).astype(np.float32))


def test_the_callers_number_of_threads_is_put_back() -> None:
    """Of numba's threads, by which its own loops run."""
    import numba

    before, torchs = numba.get_num_threads(), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        attn_backends.attention(*dense()[:3], backend="numba_cpu")
        assert numba.get_num_threads() == numba.config.NUMBA_NUM_THREADS
    finally:
        torch.set_num_threads(torchs)
        numba.set_num_threads(before)


def test_one_thread_compiles_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where several make their first call at once: one compilation, one folder, numba's own setting as before."""
    import numba

    folders = []

    def compiled(*_: Any, **__: Any) -> Callable[..., None]:
        folders.append(numba.config.CACHE_DIR)
        time.sleep(0.05)
        return lambda *_: None

    before = numba.config.CACHE_DIR
    monkeypatch.setattr(compiling, "_compiled", compiled)
    compiling.kernel.cache_clear()
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda one: attn_backends.attention(*one[:3], backend="numba_cpu"), [dense()] * 4))
    finally:
        compiling.kernel.cache_clear()
    assert len(folders) == 1
    assert before == numba.config.CACHE_DIR


CALL = """
import torch, attn_backends
q = torch.randn(1, 8, 2, 16)
right = attn_backends.attention(q, q, q, causal=True, backend="eager")
assert torch.allclose(attn_backends.attention(q, q, q, causal=True, backend="numba_cpu"), right, atol=1e-6)
"""


FORKS = """
import os, threading, warnings
warnings.simplefilter("ignore")  # Python's own about threads and forks
import torch, attn_backends
q = torch.randn(1, 300, 2, 16)
right = attn_backends.attention(q, q, q, causal=True, backend="eager")

def call():
    assert torch.allclose(attn_backends.attention(q, q, q, causal=True, backend="numba_cpu"), right, atol=1e-6)

def calls():
    while not done.is_set():
        call()

call()
done = threading.Event()
other = threading.Thread(target=calls, daemon=True)
other.start()
for _ in range(8):
    child = os.fork()
    if not child:
        call()
        from attn_backends.backends.numba_cpu import blas
        os._exit(0 if {one.get_num_threads() for one in blas._libraries()} == {2} else 1)
    assert os.waitpid(child, 0)[1] == 0
done.set()
other.join()
call()
"""

HALVES = """
import numpy as np
from numba import njit
from attn_backends.backends.numba_cpu.numbers import half_as_float

@njit
def convert(bits, into):
    for i in range(bits.shape[0]):
        into[i] = half_as_float(bits[i])

bits = np.arange(2**16, dtype=np.uint16)
into = np.empty(2**16, np.float32)
convert(bits, into)
np.testing.assert_array_equal(into, bits.view(np.float16).astype(np.float32))
np.testing.assert_array_equal(np.signbit(into), bits >= 2**15)
"""


def run_apart(script: str, **environment: str) -> str:
    """What the process said on stderr; it has to end well."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_calls_as_its_parent_does() -> None:
    """Also where another thread is in the middle of a call when the parent forks."""
    run_apart(FORKS, OPENBLAS_NUM_THREADS="2")


def test_halves_are_read_right_without_an_instruction_for_them() -> None:
    """As on a virtual processor that has the least of x86-64."""
    run_apart(HALVES, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")


@pytest.mark.slow
def test_what_was_compiled_is_found_by_the_next_process(tmp_path: Path) -> None:
    """The first says what it does for ten seconds; the second says and writes nothing: it loaded."""
    assert "some ten seconds" in run_apart(CALL, NUMBA_CACHE_DIR=str(tmp_path))
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb?")}
    assert kept
    assert run_apart(CALL, NUMBA_CACHE_DIR=str(tmp_path)) == ""
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb?")} == kept


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    """A file where the folder should be: no folder can be made below it."""
    (tmp_path / "file").write_text("")
    run_apart(CALL, NUMBA_CACHE_DIR=str(tmp_path / "file"))


@pytest.mark.slow
def test_a_torn_cache_costs_time_alone(tmp_path: Path) -> None:
    """A file that a full disk or a crash cut off is thrown away."""
    run_apart(CALL, NUMBA_CACHE_DIR=str(tmp_path))
    torn = list(tmp_path.rglob("*.nbc"))
    for file in torn:
        file.write_bytes(file.read_bytes()[:1000])
    run_apart(CALL, NUMBA_CACHE_DIR=str(tmp_path))
    assert torn
    assert not any(file.exists() for file in torn)
