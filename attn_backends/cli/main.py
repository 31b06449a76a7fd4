"""The command `attn-backends`: the group, its commands by name, and its exit codes. Imports no command before it runs."""

from __future__ import annotations

import gc

import click

from attn_backends import __version__
from attn_backends.cli.lazy import Door, LazyGroup

PROGRAM = "attn-backends"
HOME = "attn_backends.cli"

COMMANDS = {
    "list": Door(f"{HOME}.list", "Every backend, and whether it is ready on this machine."),
    "show": Door(f"{HOME}.show", "One backend's manifest: boxes, requirements, conversions, known-bad cases."),
    "explain": Door(f"{HOME}.explain", "Which backend serves a request, and why not the others."),
    "why-not": Door(f"{HOME}.why_not", "Why one backend does not serve a request, and what would change that."),
    "plan": Door(f"{HOME}.plan", "Which backend serves each attention layer of a model, on one or more devices."),
    "kv-size": Door(f"{HOME}.kv_size", "How large a model's KV cache is in each format, and what fits a device."),
    "roofline": Door(f"{HOME}.roofline", "How fast a call could be on a device, and how near each backend comes."),
    "pipeline": Door(f"{HOME}.pipeline", "What a pipelined kernel takes from a multiprocessor, and how it overlaps."),
    "bench": Door(f"{HOME}.bench", "Time every installed backend here: checked, interleaved, beside the roofline."),
    "calibrate": Door(f"{HOME}.calibrate", "Measure backends here, so that the fastest is chosen, not the likeliest."),
    "regret": Door(f"{HOME}.regret", "What the choices cost beside the best ones, on shapes that nobody tuned for."),
    "quantization-error": Door(f"{HOME}.quantization_error", "What storing q, K and V in 8 bits costs in accuracy."),
    "log": Door(f"{HOME}.log", "Read a decision log: show, why, stats, diff, replay, export."),
    "conformance": Door(f"{HOME}.conformance", "Prove a backend: run, plan, list, self-test, certificates."),
    "new": Door(f"{HOME}.new", "Write the project of a new backend, ready to run and to prove."),
    "doctor": Door(f"{HOME}.doctor", "What is installed, which device is here, what is broken, what to do."),
    "demo": Door(f"{HOME}.demo", "Plan a model, run attention here, check it, and read the log of it."),
    "completion": Door(f"{HOME}.completion", "Print the completion script of a shell."),
}


@click.group(
    cls=LazyGroup,
    doors=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Exit codes: 0 done; 1 nothing fits, differences were found, or something is broken; "
        "2 the question itself is wrong (usage, request, manifest, policy, config, unknown backend). "
        "Every command takes --json: machine-readable output, and nothing else on stdout."
    ),
)
@click.version_option(__version__, "-V", "--version", prog_name=PROGRAM)
def cli() -> None:
    """Which attention kernel serves a call, and why not the others.

    Works on a machine without GPU and without torch: --device takes the name of any GPU.
    """


def main() -> None:
    """Entry point of the console script."""
    gc.set_threshold(100_000)  # what imports make lives on; looking through it again and again is a tenth of `list`
    cli(prog_name=PROGRAM)


if __name__ == "__main__":
    main()
