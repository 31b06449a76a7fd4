"""Decision records as the selector writes them, made up for tests."""

from __future__ import annotations

import random
from typing import Any

from attn_backends.request import Request

BACKENDS = ("sdpa_flash", "sdpa_cudnn", "sdpa_mem_efficient", "flex", "triton_tiled", "sdpa_math", "eager")


def reason(code: str = "head_dim", got: Any = 320, want: str = "{64, 128}", **more: Any) -> dict[str, Any]:
    message = more.pop("message", f"{code}: got {got}, want {want}")
    return {"code": code, "axis": code, "got": got, "want": want, "message": message,
            "source": "some.toml [[capability]] 1", "hint": None, **more}  # fmt: skip


def candidate(name: str, status: str = "rejected", **more: Any) -> dict[str, Any]:
    rejected = status == "rejected"
    return {
        "name": name,
        "version": "2.13.0",
        "tier": "reference" if name in ("eager", "sdpa_math") else "standard",
        "numerics": "exact",
        "status": status,
        "stage": "capability" if rejected else "rank",
        "rank": None if rejected else (1 if status == "selected" else 2),
        "reasons": [reason()] if rejected else [],
        "predicted_ms": None,
        "measured_ms": None,
        "conversions": [],
        **more,
    }


def request(**more: Any) -> dict[str, Any]:
    neutral = {"dtype": "bfloat16", "seq_q": 512, "seq_k": 512, "num_q_heads": 32, "num_kv_heads": 8,
               "head_dim_qk": 128, "head_dim_v": 128, "batch": 2, "causal": True}  # fmt: skip
    return Request(**{**neutral, **more}).to_json()


def record(**more: Any) -> dict[str, Any]:
    """A valid record: sdpa_flash wins by priority, sdpa_math is outranked, flex is refused for its head_dim."""
    return {
        "schema": "attn.decision/1",
        "id": "1f2e3d4c5b6a7988",
        "backend": "sdpa_flash",
        "source": "priority",
        "request": request(),
        "device": {"kind": "cuda", "name": "H200", "arch": [9, 0]},
        "policy": {},
        "forced": None,
        "registry": "00ff00ff00ff00ff",
        "environment": {"device": "H200", "driver": "570.86", "versions": {"torch": "2.13.0", "triton": "3.4.0"}},
        "downcast": None,
        "candidates": [candidate("sdpa_flash", "selected"), candidate("sdpa_math", "outranked"), candidate("flex")],
        "nearest": [{"backend": "flex", "changes": [{"axis": "head_dim", "got": 320, "want": 256}]}],
        **more,
    }


def unserved(**more: Any) -> dict[str, Any]:
    """A record of a request that no backend fits."""
    return record(
        **{"id": "ffffffffffffffff", "backend": None, "source": None, "candidates": [candidate("flex")], **more}
    )


def many(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Varied records, with the envelope of a sink."""
    rng = random.Random(seed)
    return [_varied(rng, index) for index in range(count)]


CODES = ("head_dim", "arch", "dtype", "softcap", "sinks", "kv_format", "page_size", "backward", "window", "load_error",
         "not_certified", "quarantine", "seq_len", "causal_alignment", "batch_invariant")  # fmt: skip


def _varied(rng: random.Random, index: int) -> dict[str, Any]:
    winner = rng.choices((*BACKENDS, None), (40, 20, 10, 6, 15, 4, 4, 1))[0]
    phase = rng.choice(("prefill", "decode", "append"))
    asked = request(phase=phase, seq_q=1 if phase == "decode" else rng.choice((64, 512, 4096)),
                    seq_k=rng.choice((512, 4096, 131072)), batch=rng.choice((1, 2, 64)), dtype=rng.choice(("bfloat16", "float16")),
                    head_dim_qk=rng.choice((64, 128, 192)), softcap=rng.choice((None, None, 50.0)), window_left=rng.choice((-1, 511)),
                    return_lse=rng.random() < 0.3, alignment=16)  # fmt: skip
    candidates = [_standing(rng, name, winner) for name in BACKENDS]
    minute, second = divmod(index, 60)
    return record(
        id=f"{rng.getrandbits(64):016x}",
        backend=winner,
        source=rng.choice(("priority", "priority", "measured", "explicit", "prefer")) if winner else None,
        request=asked,
        device=rng.choice(({"kind": "cuda", "name": "H200", "arch": [9, 0]}, {"kind": "cpu", "name": "cpu", "arch": None})),
        policy=rng.choice(({}, {"prefer": ["sdpa_flash", "flex"], "numerics": ["exact", "quantized"]})),
        candidates=candidates,
        nearest=[{"backend": one["name"], "changes": [{"axis": "head_dim", "got": 192, "want": 128}]}
                 for one in candidates if one["status"] == "rejected"][:3],
        time=f"2026-03-04T10:{minute % 60:02}:{second:02}.000000+00:00", pid=100 + index % 3, rank=index % 2, seq=index,
    )  # fmt: skip


def _standing(rng: random.Random, name: str, winner: str | None) -> dict[str, Any]:
    if name == winner:
        return candidate(name, "selected", measured_ms=rng.choice((None, 0.1234)))
    if winner and rng.random() < 0.3:
        return candidate(name, "outranked", conversions=["make_contiguous"] if rng.random() < 0.3 else [])
    codes = rng.sample(CODES, rng.choices((1, 2, 3, 6), (6, 3, 2, 1))[0])
    return candidate(name, reasons=[reason(code) for code in codes])
