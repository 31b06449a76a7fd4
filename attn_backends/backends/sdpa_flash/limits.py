"""What boxes cannot say of torch's FlashAttention-2. Light core alone.

It takes a window's right bound of at least as many tokens as there are keys for no bound, which is true of as many keys
as queries and wrong of fewer: rows before the first key see some of them then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.reason import Reason

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.request import Request


def check(request: Request, device: Device) -> list[Reason]:  # the kernel is the same on every device
    """A reason where the right bound may not be smaller than the keys are many. Lengths are the largest of a bucket.

    No two lengths of a bucket differ by a factor of 2, so half of the largest is smaller than all of them.
    """
    right = request.window_right
    if request.causal or request.seq_q <= request.seq_k or right <= request.seq_k // 2:
        return []
    want = f"at most {request.seq_k // 2} where queries outnumber up to {request.seq_k} keys"
    hint = "the kernel takes a right bound as long as the keys for none"
    return [Reason("check", "window", right, want, f"window_right: got {right}, want {want}", "sdpa_flash check", hint)]
