"""`attn-backends conformance ...`: the group of commands that prove a backend. Each stands in a file of its own."""

from __future__ import annotations

import click

from attn_backends.cli.lazy import Door, LazyGroup

HOME = "attn_backends.cli"


@click.group(
    "conformance",
    cls=LazyGroup,
    doors={
        "run": Door(f"{HOME}.conformance_run", "Run the suite against a backend; reports, comparison, certificate."),
        "plan": Door(f"{HOME}.conformance_plan", "What will run, what cannot, and why; for any device."),
        "list": Door(f"{HOME}.conformance_list", "The clauses of the spec."),
        "self-test": Door(f"{HOME}.conformance_self_test", "Which planted bugs the suite finds on this machine."),
        "certificates": Door(f"{HOME}.conformance_certificates", "Certificates on this machine: list, verify, remove."),
    },
)
def command() -> None:
    """Prove a backend, clause by clause.

    A run ends with one line: the verdict, the counts, what the suite itself is worth here, and the device. The same items
    run under pytest: pytest --pyargs attn_backends.conformance --attn-backend NAME.
    """
