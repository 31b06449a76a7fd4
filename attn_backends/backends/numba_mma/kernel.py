"""The kernel: a block of warps owns some queries of one head, 16 for each warp, and walks over their keys.

    for every tile of 64 keys, the next one already on its way:
        s    = scale * q k^T, capped; -inf where hidden      tensor cores, float32 sums
        m'   = max(m, rowmax(s));  p = 2^(s - m')            in registers
        l    = l 2^(m - m') + rowsum(p)
        acc  = acc 2^(m - m') + p v                          tensor cores, p in 16 bits
    out = acc / l,   lse = (m + log2 l) ln 2

Only tiles that some query of the block sees are visited, a warp leaves out those that none of its own sees, and scores are
compared with bounds only in tiles at an edge. The last queries come first: under a causal mask they have most to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from attn_backends.backends.numba_mma import memory, products, softmax
from attn_backends.backends.numba_mma.config import FAR, KEYS, ROWS, Config
from attn_backends.backends.numba_mma.stage import Stage

MINUS_INF = -math.inf
STAGES: dict[str, Stage] = {
    name: one for part in (memory, products, softmax) for name, one in vars(part).items() if isinstance(one, Stage)
}


def kernel_of(config: Config, stages: Mapping[str, Any], cuda: Any, real: Any, small: Any) -> Callable[..., None]:
    """The kernel in Python; `stages` are its instructions, and `cuda` knows of blocks: numba's, or a test's.

    real, small: float32 and int32; other integers have 64 bits.
    """
    block_rows, tile_bytes, stage_bytes, lazy = config.rows, config.tile_bytes, config.stage_bytes, config.lazy
    shared_memory, warp_number, integer_at = stages["shared_memory"], stages["warp_number"], stages["integer_at"]
    copy_keys, copy_queries, share_of = stages["copy_keys"], stages["copy_queries"], stages["share_of"]
    end_of_group = stages["end_of_group"]
    wait_for_all, wait_for_all_but_one = stages["wait_for_all"], stages["wait_for_all_but_one"]
    write_rows, write_lse = stages["write_rows"], stages["write_lse"]
    write_nothing, write_empty_lse = stages["write_nothing"], stages["write_empty_lse"]
    queries, scores, weighted = stages["queries"], stages["scores"], stages["weighted"]
    in_units, hidden, packed = stages["capped" if config.softcap else "scaled"], stages["hidden"], stages["packed"]
    tops, fades, weights, totals = stages["tops"], stages["fades"], stages["weights"], stages["totals"]
    fading, faded = stages["fading"], stages["faded"]
    whole, normalised, logarithms = stages["whole"], stages["normalised"], stages["logarithms"]
    no_output, pair = stages["no_output"], stages["pair"]

    def attention(
        q: Any, k: Any, v: Any, out: Any, lse: Any, starts_q: Any, starts_k: Any,
        q_entry: Any, q_head: Any, q_row: Any, k_entry: Any, k_head: Any, k_row: Any,
        v_entry: Any, v_head: Any, v_row: Any, out_entry: Any, out_head: Any, out_row: Any,
        lse_entry: Any, lse_head: Any, lse_row: Any,
        seq_q: Any, seq_k: Any, group: Any, sequences: Any, left: Any, right: Any, bottom_right: Any,
        scale: Any, cap: Any,
    ) -> None:  # fmt: skip
        """Grid: (query tiles, query heads, sequences, and one more where packed: rows of no sequence).

        Addresses, or 0 for none, and strides in bytes, of an entry of the batch, a head and a token. starts_q, starts_k:
        where packed sequences begin, in the one entry there is; then seq_q is the number of all query tokens. group:
        query heads per KV head. left, right: -1 = unbounded. bottom_right: 0 or 1. scale, cap: see softmax.py.
        """
        head, sequence = cuda.blockIdx.y, cuda.blockIdx.z
        q += head * q_head
        k += head // group * k_head
        v += head // group * v_head
        out += head * out_head
        lse_start = lse + head * lse_head
        if starts_q != 0:
            first_q = integer_at(starts_q + 4 * sequence)
            if sequence == sequences:
                for row in range(first_q + cuda.blockIdx.x, seq_q, cuda.gridDim.x):
                    write_nothing(out + row * out_row)
                    if lse != 0:
                        write_empty_lse(lse_start + row * lse_row)
                return
            first_k = integer_at(starts_k + 4 * sequence)
            seq_q = integer_at(starts_q + 4 * sequence + 4) - first_q
            seq_k = integer_at(starts_k + 4 * sequence + 4) - first_k
            q += first_q * q_row
            k += first_k * k_row
            v += first_k * v_row
            out += first_q * out_row
            lse_start += first_q * lse_row
        else:
            q += sequence * q_entry
            k += sequence * k_entry
            v += sequence * v_entry
            out += sequence * out_entry
            lse_start += sequence * lse_entry
        start = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * block_rows
        if start >= seq_q:
            return

        # Keys that the block's queries see, [begin, end), and from here on counted from `begin`: those that the warp's see.
        offset = (seq_k - seq_q) * bottom_right
        mine = start + warp_number() * ROWS
        begin, end = 0, seq_k
        low, high = -FAR, FAR  # of the warp's first row, low <= key < high; the next row's are one further
        if left >= 0:
            begin = max(0, start + offset - left)
            low = max(mine + offset - left - begin, -FAR)
        if right >= 0:
            end = min(seq_k, min(start + block_rows, seq_q) + offset + right)
            high = min(mine + offset + right + 1 - begin, FAR)
        if mine >= seq_q:
            high = -FAR
        keys, low, high, rows = small(end - begin), small(low), small(high), small(min(seq_q - mine, ROWS))

        tiles = shared_memory()
        copy_queries(tiles + stage_bytes, share_of(q + start * q_row, q_row), q_row, min(seq_q - start, block_rows))
        end_of_group()
        k, v = share_of(k + begin * k_row, k_row), share_of(v + begin * v_row, v_row)
        if keys > 0:
            copy_keys(tiles, k, k_row, min(keys, KEYS))
            copy_keys(tiles + tile_bytes, v, v_row, min(keys, KEYS))
        end_of_group()
        wait_for_all_but_one()
        cuda.syncthreads()
        q_registers = queries(tiles + stage_bytes)
        acc, top, total = no_output(), pair(real(MINUS_INF)), pair(real(0.0))

        here, first = small(tiles), small(0)
        while first < keys:
            wait_for_all()
            cuda.syncthreads()  # this tile is there, and nobody reads the last one any more
            following, there = small(first + KEYS), small(2 * tiles + stage_bytes - here)
            k += KEYS * k_row
            v += KEYS * v_row
            if following < keys:
                copy_keys(there, k, k_row, min(keys - following, KEYS))
                copy_keys(there + tile_bytes, v, v_row, min(keys - following, KEYS))
            end_of_group()
            if first < high + ROWS - 1 and following > low:
                x = in_units(scores(q_registers, here), scale, cap)
                if following > keys or following > high or first < low + ROWS - 1:
                    x = hidden(x, low - first, high - first, keys - first)
                newest = tops(x, top)
                fade = fades(top, newest)
                p = weights(x, newest)
                total = totals(total, fade, p)
                if not lazy or fading(fade) != 0:
                    acc = faded(acc, fade)
                acc = weighted(acc, packed(p), here + tile_bytes)
                top = newest
            here, first = there, following

        total = whole(total)
        wait_for_all()
        cuda.syncthreads()  # nobody reads a tile any more
        if rows > 0:
            write_rows(tiles, normalised(acc, total), out + mine * out_row, out_row, rows)
            if lse != 0:
                write_lse(logarithms(top, total), lse_start + mine * lse_row, lse_row, rows)

    return attention
