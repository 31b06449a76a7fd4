"""Plans: what FlashInfer works out on the host before it launches, kept for as long as what they depend on stays.

A plan depends on the lengths of every request, on heads, widths, page size and dtypes, on whether the call is causal
and on its window; not on the contents of q, K, V or of the page table. It lives in a wrapper of FlashInfer's, with
16 MiB of memory for its numbers. Wrappers belong to one stream: the work space behind them is shared.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from attn_backends.backends.flashinfer.package import explained, flashinfer
from attn_backends.backends.flashinfer.readings import Seen
from attn_backends.backends.flashinfer.requests import Requests

MOST = 8  # plans per stream and kind of wrapper
LEAST_SPACE = 128 * 2**20  # bytes
BLOCKS_PER_SM = 2  # up to which FlashInfer splits keys over the grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a plan depends on; `page_size` None for packed keys. `scale` is that of packed calls, else 1."""

    requests: Requests
    heads: int
    kv_heads: int
    width: int
    page_size: int | None
    q_dtype: torch.dtype
    kv_dtype: torch.dtype
    causal: bool
    window_left: int
    scale: float

    def space(self, multiprocessors: int) -> int:
        """Bytes that partial results of split keys may take, at most: out and LSE in float32."""
        ratio = self.heads // self.kv_heads
        average = self.requests.total_rows * ratio // max(len(self.requests.rows), 1)
        tile = (128 if self.width < 256 else 64) if average > 64 else 64 if average > 16 else 16
        tiles = BLOCKS_PER_SM * multiprocessors // self.kv_heads
        return max(LEAST_SPACE, self.heads * tiles * tile * (self.width + 1) * 4 + 2**20)


@dataclass(slots=True, kw_only=True)
class Plan:
    """A planned wrapper; `pages` and `table` of paged calls, `empty` the rows that see nothing (None = none)."""

    wrapper: Any
    space: torch.Tensor
    pages: torch.Tensor | None = None
    table: Seen = field(default_factory=Seen)
    empty: torch.Tensor | None = None


class Plans:
    """The plans of one stream and one kind of wrapper, the most recent ones. Hold `lock` from `find` to the launch."""

    def __init__(self, device: torch.device, kind: str) -> None:
        self.lock = threading.Lock()
        self._device, self._kind = device, kind
        self._plans: OrderedDict[Shape, Plan] = OrderedDict()

    def find(self, shape: Shape, total_pages: int) -> Plan:
        """The plan of a shape, made if there is none."""
        plan = self._plans.get(shape)
        if plan is None:
            plan = self._plans[shape] = self._planned(shape, total_pages)
        self._plans.move_to_end(shape)
        return plan

    def _planned(self, shape: Shape, total_pages: int) -> Plan:
        plan = self._room(shape.space(_multiprocessors(self._device)))
        plan.table, plan.pages = Seen(), None
        rows = shape.requests.empty_rows()
        plan.empty = torch.tensor(rows, dtype=torch.int64, device=self._device) if rows else None
        with explained():
            if shape.page_size is None:
                plan_packed(plan.wrapper, shape)
            else:
                plan.pages = torch.zeros(total_pages, dtype=torch.int32, device=self._device)
                plan_paged(plan.wrapper, shape, plan.pages)
        return plan

    def _room(self, bytes_needed: int) -> Plan:
        """A wrapper to plan with: the least recent one if there are enough, once nothing on the stream reads it."""
        if len(self._plans) >= MOST:
            _, oldest = self._plans.popitem(last=False)
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
            if oldest.space.numel() >= bytes_needed:
                return oldest
        space = torch.empty(bytes_needed, dtype=torch.uint8, device=self._device)
        return Plan(wrapper=_WRAPPERS[self._kind](space), space=space)


_WRAPPERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "NHD": lambda space: flashinfer.BatchPrefillWithPagedKVCacheWrapper(space, "NHD", backend="fa2"),
    "HND": lambda space: flashinfer.BatchPrefillWithPagedKVCacheWrapper(space, "HND", backend="fa2"),
    "packed": lambda space: flashinfer.BatchPrefillWithRaggedKVCacheWrapper(space, "NHD", backend="fa2"),
}
_plans: dict[tuple[torch.device, int, str], Plans] = {}


def plans_of(device: torch.device, kind: str) -> Plans:
    """The plans of the current stream; `kind`: NHD, HND or packed."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    found = _plans.get((device, stream, kind))
    return found if found is not None else _plans.setdefault((device, stream, kind), Plans(device, kind))


def plan_paged(wrapper: Any, shape: Shape, pages: torch.Tensor) -> None:
    """Plan a paged call. FlashInfer keeps `pages` itself and not a copy: its contents may come later."""
    requests, page_size = shape.requests, shape.page_size or 1
    wrapper.plan(
        _int32(requests.row_starts), _int32(requests.page_starts(page_size)), pages,
        _int32(requests.last_page_lengths(page_size)), shape.heads, shape.kv_heads, shape.width, page_size,
        causal=shape.causal, window_left=shape.window_left, sm_scale=1.0, q_data_type=shape.q_dtype,
        kv_data_type=shape.kv_dtype, o_data_type=shape.q_dtype, seq_lens=_int32(requests.keys),
    )  # fmt: skip


def plan_packed(wrapper: Any, shape: Shape) -> None:
    """Plan a call whose K and V are rows."""
    requests = shape.requests
    wrapper.plan(
        _int32(requests.row_starts), _int32(requests.key_starts), shape.heads, shape.kv_heads, shape.width,
        causal=shape.causal, window_left=shape.window_left, sm_scale=shape.scale, q_data_type=shape.q_dtype,
        kv_data_type=shape.kv_dtype, o_data_type=shape.q_dtype,
    )  # fmt: skip


def _int32(numbers: list[int] | tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
