"""Field cases: what public threads show to go wrong, as data, and the runner that tries them here.

`cases.toml` explains the format in its header and is the file that runs unless another one is given; any file of the
same format runs. Decision cases need no torch. The door is `python -m attn_backends.conformance.field_cases`.
"""

from __future__ import annotations

from attn_backends.conformance.field_cases.outcome import Outcome
from attn_backends.conformance.field_cases.reading import SHIPPED, Case, read_cases
from attn_backends.conformance.field_cases.running import run_case

__all__ = ["SHIPPED", "Case", "Outcome", "read_cases", "run_case"]
