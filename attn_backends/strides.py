"""What a kernel must know of a tensor's strides: their class, and whether 32-bit offsets reach every element.

Sizes and strides are in elements and in the logical order (batch, seq, heads, head_dim), whatever the memory order;
packed tensors leave batch out; a paged cache reads (pages, page_size, heads, head_dim). Strides of dims of size 1
never matter. Light core: standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.request import Request

CLASSES = ("contiguous", "last_dim_1", "any")
_INT32_MAX = 2**31 - 1


def contiguous(sizes: tuple[int, ...], heads_first: bool = False) -> tuple[int, ...]:
    """Strides of a contiguous tensor, in logical order; `heads_first` for `bhsd` and `HND` memory."""
    order = list(range(len(sizes)))
    if heads_first:
        order[-3], order[-2] = order[-2], order[-3]
    strides = [0] * len(sizes)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(sizes[dim], 1)
    return tuple(strides)


def stride_class(sizes: tuple[int, ...], strides: tuple[int, ...] | None, heads_first: bool = False) -> str:
    """`contiguous` < `last_dim_1` < `any`."""
    if strides is None:
        return "contiguous"
    expected = contiguous(sizes, heads_first)
    if all(size <= 1 or got == want for size, got, want in zip(sizes, strides, expected, strict=True)):
        return "contiguous"
    return "last_dim_1" if sizes[-1] <= 1 or strides[-1] == 1 else "any"


def largest_offset(sizes: tuple[int, ...], strides: tuple[int, ...] | None) -> int:
    """Offset in elements of the last element; 0 for an empty tensor."""
    if min(sizes) < 1:
        return 0
    steps = contiguous(sizes) if strides is None else strides
    return sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))


def tensor_sizes(request: Request) -> dict[str, tuple[int, ...]]:
    """Logical sizes of q, k, v and out as the request describes them."""
    r = request
    if r.layout == "thd":
        total_q = r.batch * r.seq_q if r.total_q is None else r.total_q
        queries: tuple[int, ...] = (total_q,)
    else:
        queries = (r.batch, r.seq_q)
    if r.page_size is not None:
        pages = r.batch * -(-r.seq_k // r.page_size) if r.num_pages is None else r.num_pages
        keys: tuple[int, ...] = (pages, r.page_size)
    elif r.layout == "thd":
        keys = (r.batch * r.seq_k if r.total_k is None else r.total_k,)
    else:
        keys = (r.batch, r.seq_k)
    return {
        "q": (*queries, r.num_q_heads, r.head_dim_qk),
        "k": (*keys, r.num_kv_heads, r.head_dim_qk),
        "v": (*keys, r.num_kv_heads, r.head_dim_v),
        "out": (*queries, r.num_q_heads, r.head_dim_v),
    }


def request_stride_class(request: Request) -> str:
    """The loosest class among q, k and v."""
    if request.q_strides is None and request.k_strides is None and request.v_strides is None:
        return "contiguous"
    sizes = tensor_sizes(request)
    query_heads_first = request.layout == "bhsd"
    key_heads_first = request.kv_layout == "HND" if request.page_size is not None else query_heads_first
    classes = (
        stride_class(sizes["q"], request.q_strides, query_heads_first),
        stride_class(sizes["k"], request.k_strides, key_heads_first),
        stride_class(sizes["v"], request.v_strides, key_heads_first),
    )
    return max(classes, key=CLASSES.index)


def request_index_width(request: Request) -> int:
    """32 if every element offset over q, k, v, out, mask and page pool is at most 2^31 - 1, else 64."""
    if _surely_small(request):
        return 32
    sizes = tensor_sizes(request)
    offsets = [
        largest_offset(sizes["q"], request.q_strides),
        largest_offset(sizes["k"], request.k_strides),
        largest_offset(sizes["v"], request.v_strides),
        largest_offset(sizes["out"], None),
    ]
    if request.mask != "none" or request.bias:
        full = (request.batch, request.num_q_heads, request.seq_q, request.seq_k)
        offsets.append(largest_offset(full, request.mask_strides))
    return 32 if max(offsets) <= _INT32_MAX else 64


def _surely_small(r: Request) -> bool:
    """Contiguous, not paged, and small by any count: the common case, decided without listing sizes."""
    if r.page_size is not None or r.q_strides is not None or r.k_strides is not None or r.v_strides is not None:
        return False
    rows, width = r.batch * r.num_q_heads, max(r.head_dim_qk, r.head_dim_v)
    longest = max(r.seq_q, r.seq_k, r.total_q or 0, r.total_k or 0)
    masked = r.mask != "none" or r.bias
    return bool(rows * longest * (max(width, longest) if masked else width) <= _INT32_MAX)


def with_representative_strides(request: Request) -> Request:
    """The request with strides that stand for their class: none, rows padded by 8, or every stride doubled."""
    given = (request.q_strides, request.k_strides, request.v_strides, request.mask_strides)
    if given == (None, None, None, None):
        return request
    shape = request_stride_class(request)
    if shape == "contiguous":
        return request.replace(q_strides=None, k_strides=None, v_strides=None, mask_strides=None)
    sizes = tensor_sizes(request)
    return request.replace(
        **{f"{name}_strides": _representative(sizes[name], shape) for name in ("q", "k", "v")}, mask_strides=None
    )


def _representative(sizes: tuple[int, ...], shape: str) -> tuple[int, ...]:
    if shape == "any":
        return tuple(2 * step for step in contiguous(sizes))
    return contiguous((*sizes[:-1], sizes[-1] + 8))
