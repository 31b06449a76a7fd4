"""Controls: correct implementations of many kinds, none of which the suite may fail. Imports nothing by itself.

They guard against a suite that is too strict: whatever rounds differently, and rightly, is a control. Each module has a
`MANIFEST` and `run(call)`, most a `backward`; they share how a call is read and written (`places`, `descaling`,
`keeping`, `pieces`) and each does its own attention. None of them calls another backend or the oracle. `catalogue` loads them.
"""

from __future__ import annotations

NAMES = (
    "baddbmm_heads",
    "dense_einsum",
    "double_autograd",
    "exp2_domain",
    "online_tiles",
    "padded_batch",
    "padded_width",
    "query_chunks",
    "reversed_two_pass",
    "row_loop",
    "sdpa_math",
    "split_states",
)
