"""Which rows and keys of a call can matter at all, from its lengths alone.

Query row i stands at key position i + offset (Sk - Sq for `bottom_right`, 0 for `top_left`) and sees the keys from
`position - left` to `position + right`. Rows that see nothing and keys that nobody sees are cut off by slicing, so
that no kernel meets them; what is left is no mask at all, one of the two diagonals that kernels know, or a band.
No tensors here; per-sequence lengths (`seq_lens`) and mask tensors are `visibility`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attn_backends.backends.torch_sdpa.layout import seq_dim

if TYPE_CHECKING:
    from attn_backends.call import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The rows [first_row, end_row) and keys [first_key, end_key) that matter.

    Inside that slice, row r sees the keys r + offset - left ... r + offset + right; None = no bound that hides
    anything.
    """

    first_row: int
    end_row: int
    first_key: int
    end_key: int
    offset: int
    left: int | None
    right: int | None

    @property
    def rows(self) -> int:
        """How many query rows are left."""
        return max(self.end_row - self.first_row, 0)

    @property
    def keys(self) -> int:
        """How many keys are left."""
        return max(self.end_key - self.first_key, 0)

    @property
    def blank(self) -> bool:
        """Whether no row sees any key."""
        return self.rows == 0 or self.keys == 0

    @property
    def diagonals(self) -> tuple[str, ...]:
        """On which of the two diagonals that kernels know the slice hangs; both if it is square."""
        hangs = {"top_left": 0, "bottom_right": self.keys - self.rows}
        return tuple(name for name, offset in hangs.items() if offset == self.offset)


def band_of(call: Call) -> Band:
    """The band of a dense call; the whole call where lengths differ per sequence."""
    seq = seq_dim(call.layout)
    seq_q, seq_k = call.q.shape[seq], call.k.shape[seq]
    if call.seq_lens is not None:
        return Band(first_row=0, end_row=seq_q, first_key=0, end_key=seq_k, offset=0, left=None, right=None)
    left, right = bounds(call)
    offset = seq_k - seq_q if call.causal_alignment == "bottom_right" else 0
    return _cut(seq_q, seq_k, offset, left, right)


def bounds(call: Call) -> tuple[int | None, int | None]:
    """(left, right): how far a row sees to either side of its position, None = without end."""
    left = call.window_left if call.window_left >= 0 else None
    if call.causal:
        return left, 0
    return left, call.window_right if call.window_right >= 0 else None


def _cut(seq_q: int, seq_k: int, offset: int, left: int | None, right: int | None) -> Band:
    first_row = 0 if right is None else min(max(0, -offset - right), seq_q)
    end_row = seq_q if left is None else max(min(seq_q, seq_k - offset + left), first_row)
    first_key = 0 if left is None else max(0, first_row + offset - left)
    end_key = seq_k if right is None else min(seq_k, end_row + offset + right)
    moved = offset + first_row - first_key
    rows, keys = end_row - first_row, end_key - first_key
    return Band(
        first_row=first_row,
        end_row=end_row,
        first_key=first_key,
        end_key=end_key,
        offset=moved,
        left=None if left is None or rows - 1 + moved - left <= 0 else left,
        right=None if right is None or moved + right >= keys - 1 else right,
    )
