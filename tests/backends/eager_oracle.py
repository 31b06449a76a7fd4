"""Attention by the book: float64 scalars, one (head, query, key) after the other. Shares nothing with any backend."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the call asks for; masks already cut to one sequence: allowed and bias are [Hq, Sq, Sk] or None."""

    scale: float
    causal: bool = False
    top_left: bool = False
    window_left: int = -1
    window_right: int = -1
    softcap: float | None = None
    sinks: list[float] | None = None
    slopes: list[float] | None = None
    allowed: Any = None
    bias: Any = None
    dropout_p: float = 0.0
    seed: int = 0


def attention(q: Array, k: Array, v: Array, rules: Rules, batch: int = 0) -> tuple[Array, Array]:
    """q [Sq, Hq, D], k [Sk, Hkv, D], v [Sk, Hkv, Dv] -> out [Sq, Hq, Dv], lse [Hq, Sq]."""
    queries, heads, _ = q.shape
    out, lse = np.zeros((queries, heads, v.shape[2])), np.full((heads, queries), -math.inf)
    for h in range(heads):
        for i in range(queries):
            out[i, h], lse[h, i] = _row(q, k, v, rules, batch, h, i)
    return out, lse


def _row(q: Array, k: Array, v: Array, rules: Rules, batch: int, h: int, i: int) -> tuple[Array, float]:
    kv_head = h * k.shape[1] // q.shape[1]
    scores = {
        j: _score(q[i, h], k[j, kv_head], rules, h, i, j, q.shape[0], k.shape[0])
        for j in range(k.shape[0])
        if _sees(rules, h, i, j, q.shape[0], k.shape[0])
    }
    terms = list(scores.values()) + ([] if rules.sinks is None else [rules.sinks[h]])
    top = max(terms, default=-math.inf)
    if top == -math.inf:
        return np.zeros(v.shape[2]), -math.inf
    lse = top + math.log(sum(math.exp(term - top) for term in terms))
    out = np.zeros(v.shape[2])
    for j, score in scores.items():
        if _keeps(rules, batch, h, i, j):
            out += math.exp(score - lse) / (1 - rules.dropout_p) * v[j, kv_head]
    return out, lse


def _stands_at(rules: Rules, i: int, queries: int, keys: int) -> int:
    return i if rules.top_left else keys - queries + i


def _sees(rules: Rules, h: int, i: int, j: int, queries: int, keys: int) -> bool:
    position = _stands_at(rules, i, queries, keys)
    if rules.causal and j > position:
        return False
    if rules.window_left != -1 and position - j > rules.window_left:
        return False
    if rules.window_right != -1 and j - position > rules.window_right:
        return False
    if rules.allowed is not None and not rules.allowed[h, i, j]:
        return False
    return rules.bias is None or rules.bias[h, i, j] != -math.inf


def _score(q: Array, k: Array, rules: Rules, h: int, i: int, j: int, queries: int, keys: int) -> float:
    score = rules.scale * math.fsum(a * b for a, b in zip(q.tolist(), k.tolist(), strict=True))
    if rules.softcap is not None:
        score = rules.softcap * math.tanh(score / rules.softcap)
    if rules.bias is not None:
        score += float(rules.bias[h, i, j])
    if rules.slopes is not None:
        score -= rules.slopes[h] * abs(_stands_at(rules, i, queries, keys) - j)
    return score


def _keeps(rules: Rules, batch: int, h: int, i: int, j: int) -> bool:
    return rules.dropout_p == 0 or philox([j, i, h, batch], rules.seed)[0] >= rules.dropout_p * 2**32


def philox(counter: list[int], seed: int) -> list[int]:
    """Philox4x32-10 in Python integers."""
    x, key = list(counter), [seed % 2**32, (seed >> 32) % 2**32]
    for step in range(10):
        first, second = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        k0 = (key[0] + step * 0x9E3779B9) % 2**32
        k1 = (key[1] + step * 0xBB67AE85) % 2**32
        x = [(second >> 32) ^ x[1] ^ k0, second % 2**32, (first >> 32) ^ x[3] ^ k1, first % 2**32]
    return x
