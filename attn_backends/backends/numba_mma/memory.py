"""Between global and shared memory, and the few single numbers. Addresses and strides are in bytes.

`rows` says how many rows there are from the address on: rows behind them are read as 0 and never written.
"""

from __future__ import annotations

import math
from typing import Any

from attn_backends.backends.numba_mma.config import CHUNK, KEYS, ROWS, Config
from attn_backends.backends.numba_mma.stage import stage


@stage(("long", 0))
def shared_memory(m: Any, _config: Config) -> Any:
    """Its address."""
    return m.shared()


@stage(("integer", 0))
def warp_number(m: Any, _config: Config) -> Any:
    """Of the calling warp."""
    return m.warp


@stage(("integer", 0))
def integer_at(m: Any, _config: Config, address: Any) -> Any:
    """An int32 of global memory."""
    return m.load_integer(address)


@stage(lambda config: ("real", config.head_dim // 2))
def no_output(m: Any, config: Config) -> list[Any]:
    """Zeros."""
    return [m.real(0.0)] * (config.head_dim // 2)


@stage(("real", 2))
def pair(m: Any, _config: Config, number: Any) -> list[Any]:
    """The same number for both rows of a thread."""
    return [number, number]


@stage(("long", 0))
def share_of(m: Any, config: Config, address: Any, row_bytes: Any) -> Any:
    """Where the thread's own part of a tile begins. Neighbouring threads take neighbouring pieces of a row."""
    row, chunk = _place(m, config)
    return m.wide(row) * row_bytes + m.wide(chunk * CHUNK) + address


@stage()
def copy_keys(m: Any, config: Config, shared: Any, share: Any, row_bytes: Any, rows: Any) -> None:
    """Ask for a tile of K or V; all threads of the block do their share."""
    _copy(m, config, KEYS, shared, share, row_bytes, rows)


@stage()
def copy_queries(m: Any, config: Config, shared: Any, share: Any, row_bytes: Any, rows: Any) -> None:
    """Ask for the block's queries."""
    _copy(m, config, config.rows, shared, share, row_bytes, rows)


def _copy(m: Any, config: Config, tile: int, shared: Any, share: Any, row_bytes: Any, rows: Any) -> None:
    """A thread's rows are a multiple of eight apart, so its piece has the same place in each of them."""
    step = config.threads // config.chunks
    assert step % 8 == 0
    assert tile % step == 0
    row, chunk = _place(m, config)
    target = m.narrow(shared) + row * config.pitch + (chunk ^ (row & 7)) * CHUNK
    left = m.narrow(rows) - row
    for first in range(0, tile, step):
        size = m.select(left > first, CHUNK, m.integer(0))
        m.copy_async(target + first * config.pitch, row_bytes * first + share, size)


def _place(m: Any, config: Config) -> tuple[Any, Any]:
    """(row, piece) of the thread's first copy."""
    return m.thread >> (config.chunks.bit_length() - 1), m.thread & (config.chunks - 1)


@stage()
def end_of_group(m: Any, _config: Config) -> None:
    """Copies asked for since the last one belong together."""
    m.commit()


@stage()
def wait_for_all(m: Any, _config: Config) -> None:
    """Until the thread's own copies have arrived."""
    m.wait(0)


@stage()
def wait_for_all_but_one(m: Any, _config: Config) -> None:
    """Until only the newest group is on its way."""
    m.wait(1)


@stage()
def write_rows(m: Any, config: Config, shared: Any, out: Any, address: Any, row_bytes: Any, rows: Any) -> None:
    """The warp's output: through its own part of shared memory, so that threads write 16 bytes side by side."""
    lane = m.lane
    part = m.narrow(shared) + m.warp * (ROWS * config.pitch)
    row, place = lane >> 2, lane & 3
    target = part + row * config.pitch + row * CHUNK + place * 4
    for tile in range(config.chunks):
        for half in (0, 1):
            m.store_shared((target ^ (tile * CHUNK)) + half * 8 * config.pitch, out[2 * tile + half])
    m.sync_warp()
    at_once = 32 // config.chunks
    chunk = lane & (config.chunks - 1)
    left, narrow_rows = lane >> (config.chunks.bit_length() - 1), m.narrow(rows)
    for first in range(0, ROWS, at_once):
        row = left + first
        numbers = m.load_shared(part + row * config.pitch + (chunk ^ (row & 7)) * CHUNK)
        target = address + m.wide(row) * row_bytes + m.wide(chunk * CHUNK)
        m.store_chunk(target, numbers, row < narrow_rows)


@stage()
def write_lse(m: Any, _config: Config, lse: Any, address: Any, row_bytes: Any, rows: Any) -> None:
    """The warp's LSE, from the first thread of each four."""
    lane = m.lane
    for half in (0, 1):
        row = (lane >> 2) + 8 * half
        first = (lane & 3) < 1
        m.store_real(address + m.wide(row) * row_bytes, lse[half], first & (row < m.narrow(rows)))


@stage()
def write_nothing(m: Any, config: Config, address: Any) -> None:
    """A row of zeros, by the block."""
    thread = m.thread
    m.store_chunk(address + m.wide(thread * CHUNK), [m.integer(0)] * 4, thread < config.chunks)


@stage()
def write_empty_lse(m: Any, _config: Config, address: Any) -> None:
    """-inf."""
    m.store_real(address, m.real(-math.inf), m.thread < 1)
