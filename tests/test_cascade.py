"""`cascade_attention` says what one call over prefix and own tokens says, whatever the groups."""

from __future__ import annotations

import pytest
import torch

from attn_backends import PagedKVCache, attention, cascade_attention
from attn_backends.errors import RequestError

HEADS, KV_HEADS, D = 4, 2, 16
PREFIXES, OWN, NEW = (13, 22), (3, 9, 5), 2  # sequences 0 and 1 share the first prefix, 2 has the second


def told():
    """A cache with two prefixes, the sequences' own tokens, and the sequences as forks of their prefix."""
    cache = PagedKVCache(num_pages=64, page_size=4, num_kv_heads=KV_HEADS, head_dim=D, k_dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    drawn = {}

    def store(name, rows):
        cache.write(0, *rows, cache.grow({name: len(rows[0])}))

    for group, length in enumerate(PREFIXES):
        cache.add(("prefix", group))
        drawn["prefix", group] = [torch.randn(length, KV_HEADS, D, generator=generator) for _ in range(2)]
        store(("prefix", group), drawn["prefix", group])
    for index, length in enumerate(OWN):
        rows = [torch.randn(length, KV_HEADS, D, generator=generator) for _ in range(2)]
        cache.add(("own", index))
        store(("own", index), rows)
        cache.fork(("prefix", int(index == 2)), ("whole", index))
        store(("whole", index), rows)
    return cache, torch.randn(len(OWN), NEW, HEADS, D, generator=generator)


def parts(cache, groups, sequences):
    prefix, own = cache.arguments(groups), cache.arguments(sequences)
    return {
        "prefix_table": prefix["block_table"], "prefix_lens": prefix["seq_lens"], "block_table": own["block_table"],
        "seq_lens": own["seq_lens"],
    }  # fmt: skip


FEATURES = {
    "plain": {},
    "softcap": {"softcap": 2.0},
    "scale": {"softmax_scale": 0.7},
    "sinks": {"sinks": torch.tensor([0.3, -1.0, 2.0, 0.0])},
}


@pytest.mark.parametrize("name", FEATURES)
def test_two_groups(name):
    cache, q = told()
    whole = cache.arguments([("whole", index) for index in range(3)])
    wanted, wanted_lse = attention(q, cache.k[0], cache.v[0], causal=True, return_lse=True, **whole, **FEATURES[name])
    got, got_lse = cascade_attention(
        q, cache.k[0], cache.v[0], groups=torch.tensor([0, 2, 3], dtype=torch.int32), return_lse=True,
        **parts(cache, [("prefix", 0), ("prefix", 1)], [("own", index) for index in range(3)]), **FEATURES[name],
    )  # fmt: skip
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got_lse, wanted_lse, rtol=1e-5, atol=1e-5)


def test_all_are_one_group_unless_told():
    cache, q = told()
    whole = cache.arguments([("whole", 0), ("whole", 1)])
    wanted = attention(q[:2], cache.k[0], cache.v[0], causal=True, **whole)
    got = cascade_attention(
        q[:2], cache.k[0], cache.v[0], **parts(cache, [("prefix", 0)], [("own", 0), ("own", 1)])
    )  # fmt: skip
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("argument", [{"window_left": 4}, {"alibi_slopes": torch.ones(HEADS)}, {"layout": "bhsd"}])
def test_what_hangs_on_one_diagonal_is_refused(argument):
    cache, q = told()
    with pytest.raises(RequestError, match=next(iter(argument))):
        cascade_attention(q, cache.k[0], cache.v[0], **parts(cache, [("prefix", 0)], [("own", 0)] * 3), **argument)
