"""Stands in for FlashInfer: the two batch wrappers on the CPU, with the habits of the real kernels that matter.

Hidden keys and a row's maximum before its first key have the unscaled score -50000; causal requests with fewer keys than
rows go wrong (here: an error); the LSE is in base 2; q has as many rows as were planned; paged K and V share strides;
a page table is read at the launch, lengths at the plan. Every plan and launch is kept in `plans` and `launches`.
"""

from __future__ import annotations

import math

import torch

LOWEST = -5e4
TILE = 64
plans: list[dict] = []
launches: list[dict] = []


class _Wrapper:
    def __init__(self, space, kv_layout="NHD", backend="auto"):
        assert backend == "fa2"
        assert kv_layout in ("NHD", "HND")
        self._layout = kv_layout
        self._space = space

    def _plan(
        self, rows, heads, kv_heads, width, causal, window_left, sm_scale, q_data_type, kv_data_type, o_data_type
    ):
        assert heads % kv_heads == 0
        assert width in (64, 128, 256)
        self._rows, self._causal, self._window = rows.tolist(), causal, window_left
        self._scale, self._dtypes, self._width = sm_scale, (q_data_type, kv_data_type, o_data_type), width

    def _run(self, q, sequences, out, lse, return_lse, scale):
        assert return_lse == (lse is not None)
        assert q.is_contiguous()
        assert out.is_contiguous()
        assert (q.dtype, out.dtype) == (self._dtypes[0], self._dtypes[2])
        assert q.shape[0] == out.shape[0] == self._rows[-1]
        for (start, end), (k, v) in zip(zip(self._rows, self._rows[1:], strict=False), sequences, strict=True):
            assert k.dtype == self._dtypes[1]
            self._request(q[start:end], k, v, out[start:end], None if lse is None else lse[start:end], scale)
        return (out, lse) if return_lse else out

    def _request(self, q, k, v, out, lse, scale):
        rows, keys, group = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
        assert not (self._causal and rows > keys > 0), "unsigned arithmetic"
        q, k, v = (tensor.double().transpose(0, 1) for tensor in (q, k, v))
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        position = torch.arange(keys - rows, keys).unsqueeze(1)
        key = torch.arange(keys).unsqueeze(0)
        hidden = key > position if self._causal else torch.zeros((rows, keys), dtype=torch.bool)
        if self._window >= 0:
            hidden = hidden | (key < position - self._window)
        scores = (q @ k.transpose(1, 2)).masked_fill(hidden, LOWEST)
        scores = torch.nn.functional.pad(scores, (0, -keys % TILE), value=LOWEST)  # a tile's end, behind the keys
        top = scores.amax(-1).clamp(min=LOWEST) if keys else scores.new_full(scores.shape[:-1], LOWEST)
        weights = ((scores - top.unsqueeze(-1)) * scale).exp()
        total = weights.sum(-1)
        nothing = top == LOWEST
        seen = (~hidden).any(0)[..., None] if rows else torch.zeros((keys, 1), dtype=torch.bool)
        found = weights[..., :keys] @ torch.where(seen, v, 0.0) / total.clamp(min=1e-300).unsqueeze(-1)
        out.copy_(found.masked_fill(nothing.unsqueeze(-1), 0.0).transpose(0, 1))
        if lse is not None:
            peak = torch.where(nothing, top, top * scale / math.log(2.0))
            lse.copy_((peak + total.clamp(min=1.0 if not keys else 1e-300).log2()).transpose(0, 1))


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
             head_dim_qk, page_size, *, causal, window_left, sm_scale, q_data_type, kv_data_type, o_data_type, seq_lens):  # fmt: skip
        plans.append(dict(locals()))
        self._plan(qo_indptr, num_qo_heads, num_kv_heads, head_dim_qk, causal, window_left, sm_scale, q_data_type,
                   kv_data_type, o_data_type)  # fmt: skip
        self._starts, self._pages, self._last = (
            paged_kv_indptr.tolist(),
            paged_kv_indices,
            paged_kv_last_page_len.tolist(),
        )
        self._page_size = page_size
        assert len(paged_kv_indices) == self._starts[-1]
        assert all(1 <= length <= page_size for length in self._last)

    def run(self, q, paged_kv_cache, *, q_scale, out, lse, return_lse):
        launches.append(dict(locals()))
        k, v = paged_kv_cache
        assert k.stride() == v.stride()
        assert isinstance(q_scale, float)
        if self._layout == "HND":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        assert k.shape[1] == self._page_size
        return self._run(q, list(self._sequences(k, v)), out, lse, return_lse, self._scale * q_scale)

    def _sequences(self, k, v):
        for (start, end), last in zip(zip(self._starts, self._starts[1:], strict=False), self._last, strict=True):
            pages = self._pages[start:end].long()
            assert bool(((pages >= 0) & (pages < k.shape[0])).all()), "a page that is not there"
            length = 0 if end == start else (end - start - 1) * self._page_size + last
            yield tuple(pool[pages].flatten(0, 1)[:length] for pool in (k, v))


class BatchPrefillWithRaggedKVCacheWrapper(_Wrapper):
    def plan(self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, *, causal, window_left, sm_scale,
             q_data_type, kv_data_type, o_data_type):  # fmt: skip
        plans.append(dict(locals()))
        self._plan(qo_indptr, num_qo_heads, num_kv_heads, head_dim_qk, causal, window_left, sm_scale, q_data_type,
                   kv_data_type, o_data_type)  # fmt: skip
        self._starts = kv_indptr.tolist()

    def run(self, q, k, v, *, out, lse, return_lse):
        launches.append(dict(locals()))
        for tensor in (k, v):
            assert tensor.stride(-1) == 1
            assert tensor.data_ptr() % 16 == 0
        pairs = zip(self._starts, self._starts[1:], strict=False)
        return self._run(q, [(k[a:b], v[a:b]) for a, b in pairs], out, lse, return_lse, self._scale)
