"""The oracle against numbers written by hand, against loops over scalars, and its gradients against differences."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

import attn_backends
from attn_backends import BlockMask
from attn_backends.conformance.descales import Scaling, granularity_by_shape
from attn_backends.conformance.dropped import first_word, kept_weights
from attn_backends.conformance.field_cases.calling import Place
from attn_backends.conformance.field_cases.reading import read_cases
from attn_backends.conformance.field_cases.values import differences_of_value
from attn_backends.conformance.logical import key_cells
from attn_backends.conformance.oracle import oracle, oracle_gradients
from attn_backends.errors import RequestError
from attn_backends.host.arguments import arguments


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tensors here are tiny; more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


INF = math.inf
NAN = math.nan
B, SQ, SK, HQ, HKV, D, DV = 2, 5, 7, 4, 2, 3, 2


def tensors(seed=0, *, sq=SQ, sk=SK, batch=B, heads=HQ, kv_heads=HKV, dtype=torch.float64):
    """q [B, Sq, Hq, D], k [B, Sk, Hkv, D], v [B, Sk, Hkv, Dv] of normal numbers."""
    g = torch.Generator().manual_seed(seed)
    shapes = ((batch, sq, heads, D), (batch, sk, kv_heads, D), (batch, sk, kv_heads, DV))
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


# -- hand numbers ------------------------------------------------------------------------------------------------------


class Differentiable(torch.autograd.Function):
    """`attention` as the oracle answers it, for the machinery of the field cases."""

    @staticmethod
    def forward(ctx, q, k, v, given):
        ctx.save_for_backward(q, k, v)
        ctx.given = given
        exact = oracle(q, k, v, **given)
        ctx.mark_non_differentiable(exact.lse)
        return exact.out, exact.lse

    @staticmethod
    def backward(ctx, d_out, _d_lse):
        q, k, v = ctx.saved_tensors
        grads = oracle_gradients(q, k, v, d_out, **ctx.given)
        return (*(grads[name].to(q.dtype) for name in "qkv"), None)


def answer(q, k, v, **given):
    out, lse = Differentiable.apply(q, k, v, given)
    return (out, lse) if given.get("return_lse") else out


VALUE_CASES = [
    pytest.param(case, dtype, id=f"{case.id}-{dtype}")
    for case in read_cases()
    if case.kind == "value" and "rig" in case.table
    for dtype in case.dtypes
]


@pytest.mark.parametrize(("case", "dtype"), VALUE_CASES)
def test_the_oracle_gives_the_numbers_of_the_field_cases(case, dtype, monkeypatch):
    """Every value that a field case expects is the oracle's value."""
    monkeypatch.setattr(attn_backends, "attention", answer)
    assert not differences_of_value(case, Place(dtype=dtype))


def test_uniform_keys_give_the_mean_of_the_visible_indices():
    """An exact rig: q = 0 and v[j] = j, bottom-right causal with a window, no tolerance."""
    v = torch.arange(7.0, dtype=torch.float64).view(1, 7, 1, 1)
    exact = oracle(torch.zeros(1, 3, 1, 4), torch.ones(1, 7, 1, 4), v, causal=True, window_left=2)
    assert exact.out.flatten().tolist() == pytest.approx([3.0, 4.0, 5.0], abs=1e-14)
    assert exact.lse.flatten().tolist() == pytest.approx([math.log(3)] * 3, abs=1e-14)


# -- loops over scalars ------------------------------------------------------------------------------------------------


def by_loops(q, k, v, *, batch=0, **given):
    """One sequence by scalars: q [Sq, Hq, D], k [Sk, Hkv, D], v [Sk, Hkv, Dv] -> out [Sq, Hq, Dv], lse [Hq, Sq]."""
    a = SimpleNamespace(**vars(SimpleNamespace(causal=False, causal_alignment="bottom_right", window_left=-1)))
    a.window_right, a.softmax_scale, a.softcap, a.sinks, a.alibi_slopes, a.attn_mask = -1, None, None, None, None, None
    a.block_mask, a.dropout_p, a.dropout_seed = None, 0.0, 0
    vars(a).update(given)
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=torch.float64)
    lse = torch.full((q.shape[1], q.shape[0]), -INF, dtype=torch.float64)
    for h in range(q.shape[1]):
        for i in range(q.shape[0]):
            out[i, h], lse[h, i] = row_by_loops(q, k, v, a, batch, h, i)
    return out, lse


def row_by_loops(q, k, v, a, b, h, i):
    queries, keys, kv = q.shape[0], k.shape[0], h // (q.shape[1] // k.shape[1])
    position = i + (keys - queries if a.causal_alignment == "bottom_right" else 0)
    terms = {}
    for j in range(keys):
        s = sum(float(x) * float(y) for x, y in zip(q[i, h], k[j, kv], strict=True))
        s *= q.shape[2] ** -0.5 if a.softmax_scale is None else a.softmax_scale
        s = s if a.softcap is None else a.softcap * math.tanh(s / a.softcap)
        if not seen_by_loops(a, b, h, i, j, position):
            continue
        if a.attn_mask is not None and a.attn_mask.dtype != torch.bool:
            s += float(at(a.attn_mask, b, h, i, j))
        if a.alibi_slopes is not None:
            slope = a.alibi_slopes[h] if a.alibi_slopes.dim() == 1 else a.alibi_slopes[b, h]
            s -= float(slope) * abs(position - j)
        terms[j] = s
    sink = -INF if a.sinks is None else float(a.sinks[h])
    top = max([*terms.values(), sink])
    if top == -INF:
        return torch.zeros(v.shape[2], dtype=torch.float64), -INF
    total = sum(math.exp(s - top) for s in [*terms.values(), sink])
    out = torch.zeros(v.shape[2], dtype=torch.float64)
    for j, s in terms.items():
        if a.dropout_p == 0 or philox_by_ints((j, i, h, b), a.dropout_seed) >= a.dropout_p * 2**32:
            out += math.exp(s - top) / total / (1 - a.dropout_p) * v[j, kv].double()
    return out, top + math.log(total)


def seen_by_loops(a, b, h, i, j, position):
    if a.causal and j > position:
        return False
    if a.window_left >= 0 and j < position - a.window_left:
        return False
    if a.window_right >= 0 and j > position + a.window_right:
        return False
    if a.attn_mask is not None:
        entry = at(a.attn_mask, b, h, i, j)
        if (a.attn_mask.dtype == torch.bool and not bool(entry)) or float(entry) == -INF:
            return False
    if a.block_mask is not None:
        rows, columns = a.block_mask.block_size
        if not bool(at(a.block_mask.blocks, b, h, i // rows, j // columns)):
            return False
        if a.block_mask.mask is not None and not bool(at(a.block_mask.mask, b, h, i, j)):
            return False
    return True


def at(mask, *place):
    """One entry of a mask that broadcasts."""
    full = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    return full[tuple(0 if size == 1 else index for size, index in zip(full.shape, place, strict=True))]


def philox_by_ints(counter, seed):
    """The first word of Philox4x32-10, in Python's own integers."""
    x, k0, k1 = list(counter), seed % 2**32, seed // 2**32 % 2**32
    for _ in range(10):
        a, c = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [c // 2**32 ^ x[1] ^ k0, c % 2**32, a // 2**32 ^ x[3] ^ k1, a % 2**32]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return x[0]


def random_mask(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(7)) > 0.4


def float_mask(*shape):
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(8))
    return torch.where(random_mask(*shape), numbers, -INF)


SINKS = torch.tensor([0.3, -INF, 2.0, -1.0])
SLOPES = torch.tensor([0.5, 0.25, 0.1, 0.0])
BLOCKS = BlockMask(random_mask(B, 1, 3, 3), (2, 3))
CUT_BLOCKS = BlockMask(random_mask(1, HQ, 3, 2), (2, 4), random_mask(SQ, SK))

FEATURES = {
    "plain": {},
    "causal": {"causal": True},
    "causal-top-left": {"causal": True, "causal_alignment": "top_left"},
    "window-left": {"window_left": 1},
    "window-both": {"window_left": 2, "window_right": 1},
    "window-zero": {"window_left": 0, "window_right": 0},
    "window-right": {"window_right": 2},
    "window-top-left": {"window_left": 1, "window_right": 1, "causal_alignment": "top_left"},
    "causal-window": {"causal": True, "window_left": 3, "window_right": 3},
    "scale": {"softmax_scale": 0.7},
    "scale-zero": {"softmax_scale": 0.0},
    "scale-negative": {"softmax_scale": -1.5},
    "softcap": {"softcap": 0.8, "softmax_scale": 2.0},
    "sinks": {"sinks": SINKS},
    "sinks-causal": {"sinks": SINKS, "causal": True, "window_left": 1},
    "alibi": {"alibi_slopes": SLOPES},
    "alibi-by-batch": {"alibi_slopes": torch.stack([SLOPES, 2 * SLOPES]), "causal": True},
    "alibi-top-left": {"alibi_slopes": SLOPES, "causal_alignment": "top_left"},
    "bool-mask": {"attn_mask": random_mask(B, HQ, SQ, SK)},
    "bool-mask-broadcast": {"attn_mask": random_mask(B, 1, 1, SK), "causal": True},
    "bool-mask-rows": {"attn_mask": random_mask(SQ, 1)},
    "float-mask": {"attn_mask": float_mask(HQ, SQ, SK)},
    "float-mask-broadcast": {"attn_mask": float_mask(B, 1, SQ, 1), "softcap": 1.0},
    "float-mask-rows": {"attn_mask": float_mask(SQ, SK), "window_left": 2},
    "blocks": {"block_mask": BLOCKS},
    "blocks-cut": {"block_mask": CUT_BLOCKS, "causal": True},
    "dropout": {"dropout_p": 0.4, "dropout_seed": 2**40 + 17},
    "dropout-sinks": {"dropout_p": 0.25, "dropout_seed": -5, "sinks": SINKS, "causal": True},
    "all": {
        "causal": True, "window_left": 4, "softcap": 3.0, "sinks": SINKS, "alibi_slopes": SLOPES, "softmax_scale": 1.1,
        "attn_mask": float_mask(B, HQ, SQ, SK), "block_mask": BLOCKS, "dropout_p": 0.2, "dropout_seed": 3,
    },
}  # fmt: skip
FEATURE = pytest.mark.parametrize("given", [pytest.param(given, id=name) for name, given in FEATURES.items()])


def same(got, expected, tol=1e-12):
    torch.testing.assert_close(got, expected, rtol=tol, atol=tol)


def looped(q, k, v, **given):
    """by_loops over dense sequences, stacked."""
    parts = [by_loops(q[b], k[b], v[b], batch=b, **given) for b in range(len(q))]
    return torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts])


@FEATURE
def test_every_feature_is_what_loops_over_scalars_give(given):
    """Formula, visibility and order of operations, one scalar after the other."""
    q, k, v = tensors()
    exact = oracle(q, k, v, **given)
    out, lse = looped(q, k, v, **given)
    same(exact.out, out)
    same(exact.lse, lse)


@FEATURE
def test_more_queries_than_keys(given):
    """The same with rows that stand before the first key."""
    q, k, v = tensors(sq=SK, sk=SQ)
    flipped = {
        name: value.mT if isinstance(value, torch.Tensor) and name == "attn_mask" else value
        for name, value in given.items()
    }
    if "block_mask" in flipped:
        old = flipped["block_mask"]
        mask = None if old.mask is None else old.mask.mT
        flipped["block_mask"] = BlockMask(old.blocks.mT, old.block_size[::-1], mask)
    exact = oracle(q, k, v, **flipped)
    out, lse = looped(q, k, v, **flipped)
    same(exact.out, out)
    same(exact.lse, lse)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 1), (6, 2), (6, 3), (6, 6)])
def test_query_heads_read_their_group(heads, kv_heads):
    """Every ratio, by loops."""
    q, k, v = tensors(heads=heads, kv_heads=kv_heads)
    same(oracle(q, k, v).out, looped(q, k, v)[0])


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_bhsd_is_bshd_transposed():
    """Layout moves numbers and changes none."""
    q, k, v = tensors()
    plain = oracle(q, k, v, causal=True, window_left=2)
    turned = oracle(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), layout="bhsd", causal=True, window_left=2)
    assert torch.equal(turned.out, plain.out.transpose(1, 2))
    assert torch.equal(turned.lse, plain.lse)


def test_strides_do_not_matter():
    """Views with gaps read as their contiguous copies."""
    q, k, v = tensors()
    gap = [torch.full((*t.shape[:-1], 9), NAN, dtype=t.dtype) for t in (q, k, v)]
    views = [room[..., : 2 * t.shape[-1] : 2].copy_(t) for room, t in zip(gap, (q, k, v), strict=True)]
    assert torch.equal(oracle(*views, causal=True).out, oracle(q, k, v, causal=True).out)


def test_seq_lens_cut_keys_and_move_the_diagonal():
    """Each sequence by loops over its own keys, with NaN behind them; one has none."""
    q, k, v = tensors(batch=3)
    lengths = [4, 0, 7]
    out, lse = oracle_poisoned(q, k, v, lengths)
    for b, length in enumerate(lengths):
        expected, expected_lse = by_loops(q[b], k[b, :length], v[b, :length], batch=b, causal=True)
        same(out[b], expected)
        same(lse[b], expected_lse)


def oracle_poisoned(q, k, v, lengths):
    k, v = k.clone(), v.clone()
    for b, length in enumerate(lengths):
        k[b, length:], v[b, length:] = NAN, INF
    exact = oracle(q, k, v, causal=True, seq_lens=ints(*lengths))
    return exact.out, exact.lse


PACKED_Q, PACKED_K = [0, 3, 3, 4, 8], [0, 2, 5, 5, 9]


@FEATURE
def test_packed_sequences_are_each_their_own(given):
    """thd by loops: zero lengths on both sides, a tail of NaN that is nobody's, positions inside the sequence."""
    q, k, v = (t.flatten(0, 1)[:10] for t in tensors(sq=9, sk=9))
    k, v = k.clone(), v.clone()
    k[9:], v[9:] = NAN, NAN
    given = {name: value for name, value in given.items() if name not in ("attn_mask", "block_mask")}
    if "alibi_slopes" in given and given["alibi_slopes"].dim() == 2:
        given["alibi_slopes"] = torch.cat([given["alibi_slopes"]] * 2)
    cu = {"cu_seqlens_q": ints(*PACKED_Q), "cu_seqlens_k": ints(*PACKED_K)}
    exact = oracle(q, k, v, layout="thd", **cu, **given)
    for b in range(4):
        rows, keys = slice(PACKED_Q[b], PACKED_Q[b + 1]), slice(PACKED_K[b], PACKED_K[b + 1])
        out, lse = by_loops(q[rows], k[keys], v[keys], batch=b, **given)
        same(exact.out[rows], out)
        same(exact.lse[:, rows], lse)
    assert exact.out[8:].abs().max() == 0
    assert exact.lse[:, 8:].max() == -INF


def test_masks_of_packed_sequences_count_from_their_starts():
    """[B, Hq, max Sq, max Sk], each sequence in its corner; larger maxima change nothing."""
    q, k, v = (t.flatten(0, 1)[:9] for t in tensors(sq=9, sk=9))
    mask, blocks = random_mask(4, 1, 6, 8), random_mask(4, HQ, 3, 2)
    given = {"attn_mask": mask, "block_mask": BlockMask(blocks, (2, 4)), "max_seqlen_q": 6, "max_seqlen_k": 8}
    exact = oracle(q, k, v, layout="thd", cu_seqlens_q=ints(*PACKED_Q), cu_seqlens_k=ints(*PACKED_K), **given)
    for b in range(4):
        rows, keys = slice(PACKED_Q[b], PACKED_Q[b + 1]), slice(PACKED_K[b], PACKED_K[b + 1])
        out, _lse = by_loops(q[rows], k[keys], v[keys], batch=b, attn_mask=mask, block_mask=given["block_mask"])
        same(exact.out[rows], out)


TABLE = ints([5, 2, 9, -1], [0, 7, -3, 2**31 - 1], [-1, -1, -1, -1])
CACHED = [7, 4, 0]


def cache_of(rows, lengths, pages=8, page_size=3):
    """[pages, page_size, H, W] with NaN wherever no token lies."""
    cache = torch.full((pages, page_size, *rows.shape[2:]), NAN, dtype=rows.dtype)
    table = TABLE.clone()
    table[0, 2] = 1
    for b, length in enumerate(lengths):
        for p in range(length):
            cache[table[b, p // page_size], p % page_size] = rows[b, p]
    return cache, table


@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
def test_a_paged_cache_reads_as_the_tokens_in_it(kv_layout):
    """Shuffled pages, a table tail of garbage, NaN in every other cell, a sequence without keys."""
    q, k, v = tensors(batch=3, sk=7)
    (pages_k, table), (pages_v, _) = cache_of(k, CACHED), cache_of(v, CACHED)
    if kv_layout == "HND":
        pages_k, pages_v = pages_k.transpose(1, 2), pages_v.transpose(1, 2)
    given = {"block_table": table, "seq_lens": ints(*CACHED), "kv_layout": kv_layout, "causal": True}
    exact = oracle(q, pages_k, pages_v, **given)
    for b, length in enumerate(CACHED):
        out, lse = by_loops(q[b], k[b, :length], v[b, :length], batch=b, causal=True)
        same(exact.out[b], out)
        same(exact.lse[b], lse)


def test_packed_queries_read_a_paged_cache():
    """One token, several and none per sequence."""
    q, k, v = tensors(batch=3, sk=7)
    (pages_k, table), (pages_v, _) = cache_of(k, CACHED), cache_of(v, CACHED)
    cu = [0, 1, 4, 4]
    packed = q.flatten(0, 1)[:4]
    given = {"layout": "thd", "cu_seqlens_q": ints(*cu), "block_table": table, "seq_lens": ints(*CACHED)}
    exact = oracle(packed, pages_k, pages_v, causal=True, **given)
    for b, length in enumerate(CACHED):
        rows = slice(cu[b], cu[b + 1])
        out, lse = by_loops(packed[rows], k[b, :length], v[b, :length], batch=b, causal=True)
        same(exact.out[rows], out)
        same(exact.lse[:, rows], lse)


@pytest.mark.parametrize(("batch", "sq", "sk"), [(0, 3, 3), (2, 0, 3), (2, 3, 0), (1, 1, 1)])
def test_nothing_is_a_legal_size(batch, sq, sk):
    """No sequence, no query, no key."""
    q, k, v = tensors(batch=batch, sq=sq, sk=sk)
    exact = oracle(q, k, v, causal=True)
    assert exact.out.shape == (batch, sq, HQ, DV)
    assert exact.lse.shape == (batch, HQ, sq)
    if sk == 0:
        assert not exact.out.any()
        assert bool((exact.lse == -INF).all())
    grads = oracle_gradients(q, k, v, torch.ones_like(exact.out), causal=True)
    assert all(grad.isfinite().all() for grad in grads.values())


# -- quantised tensors -------------------------------------------------------------------------------------------------

CODES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
SCALES = {
    "float": 0.5,
    "per_tensor": torch.tensor([0.25]),
    "per_head": torch.rand(HKV) + 0.5,
    "per_head_by_sequence": torch.rand(B, HKV) + 0.5,
    "per_channel": torch.rand(HKV, D) + 0.5,
    "per_token_head": torch.rand(B, SK, HKV) + 0.5,
    "block": torch.rand(B, HKV, 3) + 0.5,
}


def codes(values, dtype):
    return (values * 8).round().clamp(-100, 100).to(dtype)


def as_tokens(scale, name):
    """The scale of every (sequence, token, head, channel), by loops."""
    full = torch.zeros(B, SK, HKV, D, dtype=torch.float64)
    for b, j, h, d in torch.cartesian_prod(*(torch.arange(size) for size in full.shape)).tolist():
        place = {
            "float": (), "per_tensor": (0,), "per_head": (h,), "per_head_by_sequence": (b, h), "per_channel": (h, d),
            "per_token_head": (b, j, h), "block": (b, h, j // 3),
        }[name]  # fmt: skip
        full[b, j, h, d] = float(torch.as_tensor(scale)[place])
    return full


@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_descale_multiplies_what_it_names(name, dtype, layout):
    """K by every granularity, v by a number: the same as attention over the dequantised K."""
    q, k, v = tensors()
    stored_k, stored_v = codes(k, dtype), codes(v, dtype)
    turn = (lambda t: t.transpose(1, 2)) if layout == "bhsd" else (lambda t: t)
    given = {"k_descale": SCALES[name], "v_descale": 0.125, "scale_block": 3 if name == "block" else None}
    if name == "per_head_by_sequence":
        given["k_granularity"] = "per_head"
    exact = oracle(turn(q), turn(stored_k), turn(stored_v), layout=layout, causal=True, **given)
    value = stored_k.double() * as_tokens(SCALES[name], name)
    expected = oracle(q, value, stored_v.double() * 0.125, causal=True)
    same(turn(exact.out), expected.out)
    same(exact.lse, expected.lse)


@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
def test_scales_by_token_lie_beside_the_pages(kv_layout):
    """per_token_head of a paged cache, NaN scales in cells that hold no token."""
    q, k, v = tensors(batch=3, sk=7)
    stored_k, scale = codes(k, torch.int8), torch.rand(3, 7, HKV, generator=torch.Generator().manual_seed(3)) + 0.5
    (pages_k, table), (pages_v, _), (pages_scale, _) = (cache_of(t, CACHED) for t in (stored_k.double(), v, scale))
    pages_k = pages_k.nan_to_num(99.0).to(torch.int8)
    if kv_layout == "HND":
        pages_k, pages_v, pages_scale = (t.transpose(1, 2) for t in (pages_k, pages_v, pages_scale))
    cached = {"block_table": table, "seq_lens": ints(*CACHED)}
    exact = oracle(q, pages_k, pages_v, kv_layout=kv_layout, k_descale=pages_scale, causal=True, **cached)
    value = cache_of(stored_k.double() * scale.double().unsqueeze(-1), CACHED)[0]
    dense_v = cache_of(v, CACHED)[0]
    same(exact.out, oracle(q, value, dense_v, causal=True, **cached).out)


@pytest.mark.parametrize("heads", [HQ, HKV])
def test_q_is_scaled_by_query_head_or_by_kv_head(heads):
    """A KV head's scale holds for its whole group."""
    q, k, v = tensors()
    scale = torch.rand(heads) + 0.5
    exact = oracle(codes(q, torch.float8_e4m3fn), k, v, q_descale=scale)
    value = codes(q, torch.float8_e4m3fn).double() * scale.double().repeat_interleave(HQ // heads)[:, None]
    same(exact.out, oracle(value, k, v).out)


def test_packed_tokens_have_scales_of_their_own():
    """per_token_head [total, Hkv]."""
    q, k, v = (t.flatten(0, 1)[:9] for t in tensors(sq=9, sk=9))
    scale = torch.rand(9, HKV) + 0.5
    given = {"layout": "thd", "cu_seqlens_q": ints(*PACKED_Q), "cu_seqlens_k": ints(*PACKED_K)}
    exact = oracle(q, codes(k, torch.int8), v, k_descale=scale, **given)
    same(exact.out, oracle(q, codes(k, torch.int8).double() * scale.double().unsqueeze(-1), v, **given).out)


def test_a_scale_that_means_two_things_is_an_error():
    """[2, 2] is by sequence and head, or by head and channel; the name decides."""
    stored = (2, 7, 2, 2)
    cells = key_cells(torch.zeros(stored), arguments({}))
    scaling = Scaling(descale=None, named=None, heads=(2,), block=None, stored=stored)
    with pytest.raises(ValueError, match="per_channel or per_head"):
        granularity_by_shape((2, 2), scaling, cells)
    with pytest.raises(ValueError, match="nothing"):
        granularity_by_shape((5, 5), scaling, cells)


# -- dropout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "seed", "word"),
    [
        ((0, 0, 0, 0), 0, 0x6627E8D5),
        ((0xFFFFFFFF,) * 4, 2**64 - 1, 0x408F276D),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0A4093822, 0xD16CFE09),
    ],
)
def test_philox_gives_the_published_words(counter, seed, word):
    """The known answers of the generator's own test file."""
    words = [torch.tensor([x], dtype=torch.int64).numpy().astype("uint64") for x in counter]
    assert int(first_word(words, seed)[0]) == word == philox_by_ints(counter, seed)


def test_dropout_drops_about_its_share():
    """A quarter of 40,000 entries, give or take five standard deviations."""
    kept = kept_weights(2, 2, 100, 100, 0.25, 11)
    assert abs(int(kept.sum()) - 30_000) < 5 * math.sqrt(40_000 * 0.25 * 0.75)


def test_dropout_without_a_seed_has_no_right_answer():
    """Nobody can know what the host draws."""
    with pytest.raises(ValueError, match="dropout_seed"):
        oracle(*tensors(), dropout_p=0.5)


# -- what nobody sees, and what only some see --------------------------------------------------------------------------


def test_what_no_row_sees_changes_nothing():
    """NaN and inf at keys that mask and window hide from every row: bit-equal out, LSE and gradients."""
    q, k, v = tensors()
    given = {
        "window_right": 0,
        "causal_alignment": "top_left",
        "attn_mask": torch.tensor([[True] * 3 + [False] + [True] * 3]),
    }
    clean = oracle(q, k, v, **given)
    grads = oracle_gradients(q, k, v, torch.ones_like(clean.out), **given)
    k[:, [3, 5, 6]], v[:, [3, 5, 6]] = NAN, INF
    dirty = oracle(q, k, v, **given)
    assert torch.equal(dirty.out, clean.out)
    assert torch.equal(dirty.lse, clean.lse)
    assert dirty.value_rms == clean.value_rms
    again = oracle_gradients(q, k, v, torch.ones_like(clean.out), **given)
    assert all(torch.equal(again[name], grads[name]) for name in "qkv")


@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("value", [NAN, INF, 1e30])
def test_a_key_that_some_rows_see_leaves_the_others_alone(name, value):
    """The last key under causal reaches the last row and no other, in the output and in their gradients of q."""
    q, k, v = tensors(sq=4, sk=4)
    clean, d_out = oracle(q, k, v, causal=True), torch.ones(B, 4, HQ, DV)
    d_q = oracle_gradients(q, k, v, d_out, causal=True)["q"]
    {"k": k, "v": v}[name][:, 3] = value
    dirty = oracle(q, k, v, causal=True)
    assert torch.equal(dirty.out[:, :3], clean.out[:, :3])
    assert torch.equal(dirty.lse[..., :3], clean.lse[..., :3])
    assert not torch.equal(dirty.out[:, 3].nan_to_num(), clean.out[:, 3])
    if name == "v" or value == 1e30:
        same(oracle_gradients(q, k, v, d_out, causal=True)["q"][:, :3], d_q[:, :3])


def test_non_finite_values_follow_plain_arithmetic():
    """inf at a visible key gives inf, at a key of weight 0 NaN, opposite ones NaN."""
    q, k = torch.tensor([[[[1.0]]]]), torch.tensor([[[[0.0]], [[0.0]], [[-1e6]]]])
    for values, expected in (([INF, 1.0, 0.0], INF), ([INF, -INF, 0.0], NAN), ([1.0, 1.0, INF], NAN)):
        v = torch.tensor(values).view(1, 3, 1, 1)
        got = float(oracle(q, k, v, softmax_scale=1.0).out)
        assert got == expected or (math.isnan(got) and math.isnan(expected))


# -- gradients ---------------------------------------------------------------------------------------------------------


def differences(q, k, v, d_out, d_lse, given):
    """Central differences of sum(out d_out) + sum(lse d_lse) for every number of every differentiable tensor."""
    named = {"q": q, "k": k, "v": v, "sinks": given.get("sinks")}
    mask = given.get("attn_mask")
    named["bias"] = mask if mask is not None and mask.is_floating_point() else None
    named = {name: tensor.double() for name, tensor in named.items() if tensor is not None}
    found = {name: torch.zeros_like(tensor) for name, tensor in named.items()}
    for name, tensor in named.items():
        for place in (
            torch.cartesian_prod(*(torch.arange(size) for size in tensor.shape)).reshape(-1, tensor.dim()).tolist()
        ):
            if not math.isfinite(float(tensor[tuple(place)])):
                continue
            ends = []
            for step in (1e-5, -1e-5):
                moved = {**named, name: tensor.clone()}
                moved[name][tuple(place)] += step
                ends.append(total(moved, d_out, d_lse, given))
            found[name][tuple(place)] = (ends[0] - ends[1]) / 2e-5
    return found


def total(named, d_out, d_lse, given):
    changed = {"sinks": named.get("sinks"), **({"attn_mask": named["bias"]} if "bias" in named else {})}
    exact = oracle(named["q"], named["k"], named["v"], **{**given, **changed})
    return float((exact.out * d_out).sum() + torch.where(exact.lse == -INF, 0.0, exact.lse * d_lse).sum())


GRADIENT_CASES = (
    "causal",
    "softcap",
    "sinks-causal",
    "alibi",
    "float-mask",
    "float-mask-broadcast",
    "blocks-cut",
    "all",
)


@pytest.mark.parametrize("name", GRADIENT_CASES)
def test_gradients_are_the_slopes_of_the_result(name):
    """Central differences over every number of q, k, v, float mask and sinks, through out and LSE, with empty rows."""
    q, k, v = tensors()
    g = torch.Generator().manual_seed(5)
    d_out, d_lse = torch.randn(B, SQ, HQ, DV, generator=g).double(), torch.randn(B, HQ, SQ, generator=g).double()
    given = FEATURES[name]
    grads = oracle_gradients(q, k, v, d_out, d_lse, **given)
    slopes = differences(q, k, v, d_out, d_lse, given)
    assert set(grads) == set(slopes)
    for key, slope in slopes.items():
        same(grads[key], slope, 1e-7)


def test_gradients_of_packed_tensors_come_back_packed():
    """thd: each sequence's gradients are those it has alone; tails have none."""
    q, k, v = (t.flatten(0, 1)[:10] for t in tensors(sq=9, sk=9))
    d_out, d_lse = torch.ones(10, HQ, DV), torch.ones(HQ, 10)
    given = {"layout": "thd", "cu_seqlens_q": ints(*PACKED_Q), "cu_seqlens_k": ints(*PACKED_K), "causal": True}
    grads = oracle_gradients(q, k, v, d_out, d_lse, **given)
    rows, keys = slice(4, 8), slice(5, 9)
    alone = oracle_gradients(
        q[None, rows], k[None, keys], v[None, keys], d_out[None, rows], d_lse[None, :, rows], causal=True
    )
    same(grads["q"][rows], alone["q"][0])
    same(grads["k"][keys], alone["k"][0])
    same(grads["v"][keys], alone["v"][0])
    assert not grads["q"][8:].any()
    assert not grads["k"][9:].any()


def test_codes_have_no_gradient_and_inputs_stay_untouched():
    """Nothing flows into a quantised cache; neither call changes a byte."""
    q, k, v = tensors(dtype=torch.float32)
    stored = codes(v, torch.int8)
    before = [t.clone() for t in (q, k, stored)]
    d_out = torch.ones(B, SQ, HQ, DV)
    assert set(oracle_gradients(q, k, stored, d_out, v_descale=0.5, sinks=SINKS)) == {"q", "k", "sinks"}
    assert all(torch.equal(a, b) for a, b in zip((q, k, stored), before, strict=True))


def test_an_argument_that_attention_does_not_have_is_an_error():
    """A typo in a test does not turn a feature off."""
    with pytest.raises(RequestError, match="window_left"):
        oracle(*tensors(), windowleft=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@FEATURE
def test_the_oracle_answers_where_the_inputs_are(given):
    """On a GPU, in float64, the same numbers."""

    def moved(value):
        if isinstance(value, BlockMask):
            return BlockMask(value.blocks.cuda(), value.block_size, None if value.mask is None else value.mask.cuda())
        return value.cuda() if isinstance(value, torch.Tensor) else value

    q, k, v = tensors()
    there = oracle(q.cuda(), k.cuda(), v.cuda(), **{name: moved(value) for name, value in given.items()})
    assert there.out.is_cuda
    same(there.out.cpu(), oracle(q, k, v, **given).out)
