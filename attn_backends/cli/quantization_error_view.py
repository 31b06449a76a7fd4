"""The error budget on the screen: one row per option, with a bar of its error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.cli.screen import GOOD, QUIET, WARN, console, table, text

if TYPE_CHECKING:
    from attn_backends.error_budget.budget import ErrorBudget, OptionError

BAR = 14  # cells of the largest error
EIGHTHS = " ▏▎▍▌▋▊▉"


def print_budget(found: ErrorBudget, budget: float | None) -> None:
    """Options in their order; green within the budget."""
    screen = console()
    shown = table("option", "error", "", "worst head", "KV bytes")
    shown.columns[0].no_wrap = True
    largest = max((one.relative for one in found.options), default=0.0)
    for one in found.options:
        style = GOOD if budget is not None and one.relative <= budget else ""
        worst = f"{one.worst_head:.2%} ({one.head})"
        bar = text((_bar(one.relative, largest), style or WARN))
        shown.add_row(text((one.name, style)), f"{one.relative:.2%}", bar, worst, f"{one.kv_bytes:g}")
    screen.print(shown)
    sample = f"{found.rows} rows per head against {found.keys} keys; errors are relative to float64's output"
    screen.print(text((sample, QUIET)))
    screen.print(text(("worst head: error (number); bytes per token and KV head, scales left out", QUIET)))
    if budget is not None:
        screen.print(text(_verdict(found.within(budget), budget)))


def _bar(value: float, largest: float) -> str:
    eighths = round(8 * BAR * value / largest) if largest > 0 else 0
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _verdict(fitting: tuple[OptionError, ...], budget: float) -> tuple[str, str]:
    if not fitting:
        return f"no option keeps {budget:.3g}: stay with 16 bits, or allow more", WARN
    return f"within {budget:.3g}, fewest bytes first: " + ", ".join(one.name for one in fitting), GOOD
