"""`Span`: which earlier and later tokens one layer sees; and the span of every layer of a stack.

A sliding window of W tokens counts the token itself: `window_left = W - 1` under a causal mask. Two-sided windows of W
reach W // 2 to either side. Layers without softmax attention (linear, recurrent, convolution) have no span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from attn_backends.planning import aliases as a
from attn_backends.planning.aliases import Aliases
from attn_backends.planning.errors import ConfigError
from attn_backends.planning.section import Section


@dataclass(frozen=True, slots=True)
class Span:
    """`variant` picks the heads; longer keys than `mask_beyond` need a bool mask; `or_global`: global tokens may join."""

    label: str
    variant: str = "full"
    left: int = -1
    right: int = -1
    mask_beyond: int | None = None
    block: int | None = None
    cross: bool = False
    or_global: bool = False


Spans = list[Span | None]
FULL = Span("full")
CROSS = Span("cross", cross=True)
INFERRED_CHUNK_INTERVAL = 4


def layer_spans(section: Section, layers: int, *, causal: bool) -> Spans:
    """One span per layer, None where a layer has no softmax attention."""
    stack = _Stack(section, layers, causal)
    spans = stack.per_layer_windows() or stack.local_and_global() or stack.worded() or stack.chunked()
    spans = spans or [stack.default(layer) for layer in range(layers)]
    attends = _attends(section, layers)
    crossing = _indices(section, a.CROSS_LAYERS, layers) or frozenset()
    result: Spans = []
    for layer, span in enumerate(spans):
        if not attends[layer] or span is None:
            result.append(None)
        else:
            result.append(CROSS if layer in crossing else _sparse(section, span, two_sided=not causal))
    return result


def window_span(window: int, *, causal: bool) -> Span:
    """The span of a window of `window` tokens."""
    if causal:
        return Span(f"sliding {window}", "sliding", left=window - 1)
    return Span(f"local {window}", "sliding", left=window // 2, right=window // 2)


@dataclass(frozen=True, slots=True)
class _Stack:
    """The ways in which configs say which layers see what; each method gives None where its keys are absent."""

    section: Section
    layers: int
    causal: bool

    def window(self, window: int) -> Span:
        return window_span(window, causal=self.causal)

    def per_layer_windows(self) -> Spans | None:
        """A two-sided window for all layers or one per layer, to which a call may add global tokens."""
        windows = None if self.causal else self.section.sizes(a.WINDOW_PER_LAYER)
        if windows is None:
            return None
        windows = windows * self.layers if len(windows) == 1 else windows
        self._same_length("attention_window", windows)
        return [replace(window_span(one, causal=False), or_global=True) for one in windows]

    def local_and_global(self) -> Spans | None:
        """Every n-th layer, from the first, is full; the others have the local window."""
        every = self.section.whole(a.GLOBAL_EVERY)
        if every is None:
            return None
        self.section.require((*a.LOCAL, *a.WINDOW))
        local = self.window(self.section.whole((*a.LOCAL, *a.WINDOW)) or 0)
        return [local if layer % every else FULL for layer in range(self.layers)]

    def worded(self) -> Spans | None:
        """One word per layer."""
        words = self._words()
        return None if words is None else [self._of_word(word, layer) for layer, word in enumerate(words)]

    def _words(self) -> Sequence[Any] | None:
        section = self.section
        if (words := section.entries(a.LAYER_WORDS)) is not None:
            self._same_length("layer_types", words)
            return words
        if cycle := section.entries(a.LAYER_CYCLE):
            return [cycle[layer % len(cycle)] for layer in range(self.layers)]
        if (runs := section.entries(a.LAYER_WORD_RUNS)) is not None:
            words = [word for run in runs for word in _unrolled(section, run)]
            self._same_length("attention_types", words)
            return words
        if (bits := section.entries(a.LAYER_BITS)) is not None:
            self._same_length("hybrid_layer_pattern", bits)
            return ["sliding" if bit == 1 else "full" for bit in bits]
        return None

    def _of_word(self, word: Any, layer: int) -> Span | None:
        meaning = next((sense for part, sense in a.WORD_MEANINGS if part in str(word).lower()), None)
        if meaning is None:
            known = ", ".join(sorted({part for part, _sense in a.WORD_MEANINGS}))
            raise self.section.wrong("layer_types", word, f"a word that contains one of {known}")
        if meaning == "sliding":
            return FULL if self.section.flag(a.WINDOW_ON) is False else self.window(self._stated(a.WINDOW_OF_WORD))
        if meaning == "chunked":
            return _chunk(self._stated(a.CHUNK))
        return {"none": None, "full": FULL, "cross": CROSS}[meaning] if meaning != "any" else self.default(layer)

    def _stated(self, aliases: Aliases) -> int:
        self.section.require(aliases)
        return self.section.whole(aliases) or 0

    def chunked(self) -> Spans | None:
        """Chunks that do not see each other, but for the layers without rotary positions, which are full."""
        chunk = self.section.whole(a.CHUNK)
        if chunk is None:
            return None
        flags = self.section.entries(a.CHUNK_FLAGS)
        interval = self.section.whole(a.CHUNK_INTERVAL)
        if flags:
            self._same_length("no_rope_layers", flags)
            return [_chunk(chunk) if flag else FULL for flag in flags]
        if flags is not None and interval is None:
            interval = INFERRED_CHUNK_INTERVAL
            self.section.note(f"no_rope_layers is empty: every {interval}th layer taken as full")
        return [_chunk(chunk) if not interval or (layer + 1) % interval else FULL for layer in range(self.layers)]

    def default(self, layer: int) -> Span:
        """The span of a layer that nothing says anything about but the model's window."""
        if self.section.flag(a.WINDOW_ON) is False:
            return FULL
        found = self.section.find(a.WINDOW)
        if found is not None and isinstance(found[1], list) and found[1]:
            window = found[1][layer % len(found[1])]
            if window is not None and (type(window) is not int or window < 1):
                raise self.section.wrong(found[0], window, "null or a whole number >= 1 per layer")
            return FULL if window is None else self.window(window)
        window = self.section.whole(a.WINDOW, least=0)
        return self.window(window) if window and self._is_windowed(layer) else FULL

    def _is_windowed(self, layer: int) -> bool:
        found = self.section.find(a.WINDOW_PATTERN)
        if found is not None and isinstance(found[1], str) and found[1]:
            return found[1][layer % len(found[1])].upper() in "LSW"
        period = self.section.whole(a.WINDOW_PATTERN) or self._inferred_period()
        if period is not None:
            return (layer + 1) % period != 0
        return layer >= (self.section.whole(a.WINDOW_FROM_LAYER, least=0) or 0)

    def _inferred_period(self) -> int | None:
        """Models with a window and a logit cap alternate; with a query scalar and no cap, five of six are windowed.

        Their configs leave the pattern to the code. A `layer_types` or `sliding_window_pattern` key always wins.
        """
        if self.section.has(a.WINDOW_FROM_LAYER) or not self.causal:
            return None
        if self.section.has(a.SOFTCAP):
            self.section.note("window and logit cap without a pattern: every second layer taken as full")
            return 2
        if self.section.has(a.SCALE_ROOT_OF):
            self.section.note("window and query scalar without a pattern: every sixth layer taken as full")
            return 6
        return None

    def _same_length(self, key: str, values: Sequence[Any]) -> None:
        if len(values) != self.layers:
            raise ConfigError(f"{key}: {len(values)} entries for {self.layers} layers", where=self.section.where)


def _chunk(chunk: int) -> Span:
    return Span(f"chunked {chunk}", "sliding", mask_beyond=chunk)


def _unrolled(section: Section, run: Any) -> list[Any]:
    if not (isinstance(run, list) and len(run) == 2 and isinstance(run[0], list) and type(run[1]) is int):
        raise section.wrong("attention_types", run, "[[word, ...], repeats]")
    return run[0] * min(run[1], 10_000)


def _sparse(section: Section, span: Span, *, two_sided: bool) -> Span:
    """Block-sparse and top-k attention on top of what the layer would see."""
    is_sparse = two_sided and section.word(a.SPARSE_KIND) == "block_sparse"
    block = section.whole(a.SPARSE_BLOCK) if is_sparse else None
    if block is not None and span == FULL:
        return replace(span, label=f"sparse {block}", block=block)
    top = section.whole(a.TOP_KEYS)
    return span if top is None or span != FULL else replace(span, mask_beyond=top)


def _attends(section: Section, layers: int) -> list[bool]:
    """Which layers have softmax attention at all, in hybrids with recurrent or linear layers."""
    everywhere = range(layers)
    if (indices := _indices(section, a.ATTENTION_INDICES, layers)) is not None:
        return [layer in indices for layer in everywhere]
    if (period := section.whole(a.ATTENTION_PERIOD)) is not None:
        offset = section.whole(a.ATTENTION_OFFSET, least=0) or 0
        return [layer % period == offset for layer in everywhere]
    if not section.has(a.LAYER_WORDS) and (every := section.whole(a.FULL_INTERVAL)) is not None:
        return [(layer + 1) % every == 0 for layer in everywhere]
    letters = section.word(a.LAYER_LETTERS)
    flags: Sequence[Any] | None = [one == "*" for one in letters] if letters else section.entries(a.ATTENTION_LIST)
    if flags is None:
        return [True] * layers
    if len(flags) != layers:
        raise ConfigError(f"the layer pattern has {len(flags)} entries for {layers} layers", where=section.where)
    return [bool(flag) for flag in flags]


def _indices(section: Section, aliases: Aliases, layers: int) -> frozenset[int] | None:
    values = section.entries(aliases)
    if values is None:
        return None
    if any(type(value) is not int or not 0 <= value < layers for value in values):
        raise section.wrong(aliases[0], values, f"layer numbers from 0 to {layers - 1}")
    return frozenset(values)
