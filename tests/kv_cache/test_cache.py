"""`PagedKVCache` holds what was written: through forks, copies on write and moves, in every format and layout."""

from __future__ import annotations

import pytest
import torch

from attn_backends import PagedKVCache, attention, copy_pages, gather_kv
from attn_backends.errors import OutOfPagesError, RequestError

HEADS, D, DV = 2, 16, 8
STORES = {
    "float32": {},
    "e4m3 per tensor": {"k_dtype": torch.float8_e4m3fn, "k_descale": 0.02, "v_descale": 0.02},
    "int8 per token": {
        "k_dtype": torch.int8, "k_granularity": "per_token_head", "v_granularity": "per_token_head",
    },
    "V alone, per token": {"v_dtype": torch.float8_e5m2, "v_granularity": "per_token_head"},
    "K per channel": {"k_dtype": torch.int8, "k_descale": torch.full((HEADS, D), 0.05), "v_dtype": torch.float32},
}  # fmt: skip
LIMITS = {
    "float32": 0.0,
    "e4m3 per tensor": 0.3,
    "int8 per token": 0.03,
    "V alone, per token": 0.5,
    "K per channel": 0.03,
}


def made(store="float32", layout="NHD", **more):
    fields = {
        "num_pages": 24, "page_size": 4, "num_kv_heads": HEADS, "head_dim": D, "head_dim_v": DV, "num_layers": 2,
        "k_dtype": torch.float32, "kv_layout": layout, **STORES[store], **more,
    }  # fmt: skip
    return PagedKVCache(**fields)


class Mirror:
    """The same sequences as plain tensors."""

    def __init__(self, cache, seed=0):
        self.cache, self.generator, self.held = cache, torch.Generator().manual_seed(seed), {}

    def grow(self, tokens):
        slots = self.cache.grow(tokens)
        for layer in range(2):
            k = torch.randn(len(slots), HEADS, D, generator=self.generator)
            v = torch.randn(len(slots), HEADS, DV, generator=self.generator)
            self.cache.write(layer, k, v, slots)
            start = 0
            for name, count in tokens.items():
                rows = self.held.setdefault((name, layer), [k[:0], v[:0]])
                for side, drawn in enumerate((k, v)):
                    rows[side] = torch.cat([rows[side], drawn[start : start + count]])
                start += count

    def fork(self, source, name):
        self.cache.fork(source, name)
        for layer in range(2):
            self.held[name, layer] = list(self.held[source, layer])

    def check(self, limit):
        names = list(self.cache.sequences)
        for layer in range(2):
            given = self.cache.arguments(names, layer)
            given.pop("max_seqlen_k")
            got_k, got_v, starts = gather_kv(self.cache.k[layer], self.cache.v[layer], dtype=torch.float32, **given)
            assert starts.tolist() == [0, *torch.tensor([self.cache.length(name) for name in names]).cumsum(0).tolist()]
            for side, got in enumerate((got_k, got_v)):
                wanted = torch.cat([self.held[name, layer][side] for name in names])
                torch.testing.assert_close(got, wanted, rtol=0, atol=limit)


def told(store, layout):
    cache = made(store, layout)
    mirror = Mirror(cache)
    cache.add("a")
    cache.add("other")
    mirror.grow({"a": 9, "other": 2})
    mirror.fork("a", "b")
    mirror.grow({"b": 4, "a": 2, "other": 3})
    mirror.fork("b", "c")
    mirror.grow({"c": 1})
    return cache, mirror


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("store", STORES)
def test_what_was_written_comes_out(store, layout):
    _, mirror = told(store, layout)
    mirror.check(LIMITS[store])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("store", STORES)
def test_defragmenting_moves_pages_and_changes_no_sequence(store, layout):
    cache, mirror = told(store, layout)
    cache.free("other")
    before = {name: cache.length(name) for name in cache.sequences}
    assert cache.defragment() > 0
    assert {name: cache.length(name) for name in cache.sequences} == before
    used = {page for name in cache.sequences for page in cache.pages(name)}
    assert used == set(range(len(used)))
    mirror.check(LIMITS[store])


def test_attention_over_a_fork_is_attention_over_its_own_tokens():
    cache, mirror = told("float32", "NHD")
    names = ["c", "a"]
    q = torch.randn(2, 1, 4, D, generator=mirror.generator)
    out = attention(q, cache.k[1], cache.v[1], causal=True, **cache.arguments(names, 1))
    for row, name in enumerate(names):
        k, v = (rows.unsqueeze(0) for rows in mirror.held[name, 1])
        alone = attention(q[row : row + 1], k, v, causal=True)
        torch.testing.assert_close(out[row : row + 1], alone, rtol=1e-5, atol=1e-5)


def test_rejected_drafts_are_forgotten_and_written_over():
    cache, mirror = told("float32", "NHD")
    cache.truncate("b", 10)
    for layer in range(2):
        mirror.held["b", layer] = [rows[:10] for rows in mirror.held["b", layer]]
    mirror.grow({"b": 3})
    mirror.check(0.0)


def test_out_of_pages_loses_nothing():
    cache, mirror = told("float32", "NHD")
    with pytest.raises(OutOfPagesError):
        cache.grow({"a": 1, "b": 1000})
    mirror.check(0.0)
    assert cache.grow({"a": 4 * cache.free_pages}).numel() > 0


def test_a_page_is_not_written_while_others_hold_it():
    cache, mirror = told("float32", "NHD")
    shared = cache.pages("a")[0]
    assert shared == cache.pages("b")[0] == cache.pages("c")[0]
    before = cache.k[0][shared].clone()
    mirror.grow({"a": 7, "b": 7, "c": 7})
    assert torch.equal(cache.k[0][shared], before)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_pages": 0},
        {"page_size": 0},
        {"kv_layout": "HDN"},
        {"k_dtype": torch.int8},
        {"k_descale": 0.1},
        {"k_dtype": torch.int8, "k_descale": [0.1], "v_dtype": torch.float32},
    ],
    ids=["no pages", "no cells", "unknown layout", "int8 without descale", "descale of a dense cache", "one layer's"],
)
def test_impossible_caches_are_refused(changes):
    with pytest.raises(RequestError):
        made(**changes)


def test_pages_are_read_before_any_is_written():
    """A chain of moves, each into the next one's source."""
    pool = torch.arange(5).reshape(5, 1).clone()
    copy_pages([pool], [0, 1, 2], [1, 2, 3])
    assert pool.flatten().tolist() == [0, 0, 1, 2, 4]


def test_gathering_beyond_the_table_is_an_error():
    cache, _ = told("float32", "NHD")
    given = cache.arguments(["a"])
    given.pop("max_seqlen_k")
    given["seq_lens"] = given["seq_lens"] + 100
    with pytest.raises(RequestError, match="seq_lens"):
        gather_kv(cache.k[0], cache.v[0], **given)


@pytest.mark.parametrize(("rows", "pages", "said"), [(1, 4, "block_table"), (2, 3, "v_cache")])
def test_gathering_from_tables_and_caches_that_do_not_fit_is_refused(rows, pages, said):
    """A row per sequence, and as many pages of V as of K; more rows than sequences are nobody's."""
    k, v = torch.randn(4, 2, HEADS, D), torch.randn(pages, 2, HEADS, DV)
    table, lengths = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)[:rows], torch.tensor([3, 4], dtype=torch.int32)
    with pytest.raises(RequestError, match=said):
        gather_kv(k, v, table, lengths)
    longer = torch.tensor([[0, 1], [2, 3], [9, 9]], dtype=torch.int32)
    got, _, starts = gather_kv(k, torch.randn(4, 2, HEADS, DV), longer, lengths)
    assert (got.shape[0], starts.tolist()) == (7, [0, 3, 7])
