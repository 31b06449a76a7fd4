"""`docs/policy.md`: the keys of a policy file."""

from __future__ import annotations

from attn_backends.cli.generators.markdown import code, page, refuse_unsaid, table
from attn_backends.registry.knobs import KNOBS, PREFIX
from attn_backends.selector.conditions import SIZES
from attn_backends.selector.policy import policy_keys

INTRO = """\
A policy says what may be chosen, and what is preferred. `Policy(...)` takes its keys as arguments, `Policy.from_toml(path)`
reads them from a file, and `--policy FILE` of `explain`, `why-not`, `plan` and `roofline` does the same. Keys stand at the
top of the file, or all of them under `[policy]`. An unknown key or an illegal value is answered with the nearest legal one."""

EXAMPLE = """\
```toml
block = ["flex"]
prefer = ["hopper", "sdpa_cudnn"]
numerics = ["exact", "quantized"]
forbid_reference = true

[[rules]]
when = { phase = ["decode"], batch = { max = 8 } }
prefer = ["paged_decode"]

[[rules]]
when = { device = ["cpu"] }
forbid_reference = false
```"""

ANSWERS_OF = "What `attn-backends explain --policy policy.toml` answers with that file:"
ANSWERS = {  # flags -> (backend or none, on what grounds, why)
    "--device h200 --causal": ("hopper", "prefer", "the first of `prefer`"),
    "--device h200 --phase decode --page-size 16 --batch 4 --seq 1x4096": (
        "paged_decode", "prefer", "hopper reads no pages, so the first rule's own `prefer` decides",
    ),
    "--device cpu --dtype float8_e5m2": ("eager", "priority", "the second rule lets the reference in, and only it fits"),
    "--device h200 --dtype float8_e5m2": ("none", "none", "only the reference fits, and it is forbidden there"),
}  # fmt: skip

RULES = """\
A rule holds for the requests that meet every condition under its `when`; then the other keys of its table are laid over the
policy, rule after rule. Any key but `rules` may stand there. Conditions name axes, written as in a manifest
([axes.md](axes.md)), or sizes: {sizes}, as a set, a range (`{{ min = 1, max = 8 }}`), multiples
(`{{ multiple_of = 16 }}`) or a rest (`{{ mod = 128, rest = 64 }}`). A condition on an axis that does not apply to the call
does not hold."""

LAYERS = """\
From below: the policies of open scopes (`with use(policy=...)`), outermost first; the call's own (`policy=`, or a file with
the options of the command line laid over it); environment variables ({knobs}). What is laid over replaces
what was there, with these exceptions: `block` and `trust` grow, `only` narrows to what both allow, `prefer` and `rank_hooks`
go in front, `rules` come after. `backend=` of a call beats a pin and every order; a backend that the policy forbids is refused all the same, with the
reason, but for `forbid_reference`, which a call by name passes."""

KNOBS_OF_POLICIES = ("BLOCK", "ONLY", "PIN", "STRICT")
MEANINGS = {
    "only": "the backends to use, and no others; their order says nothing",
    "block": "never these",
    "prefer": "best first; what fits and is not listed comes after",
    "pin": "the one backend for every call; a call that it cannot serve raises",
    "numerics": "kinds of numerics that are allowed; leaving `exact` out leaves out what only rounds",
    "allow_downcast": "a float32 call may run in bfloat16 or float16; the decision records it",
    "allow_quarantined": "combinations that are known to be bad, too",
    "forbid_reference": "falling to a backend of tier `reference` is an error",
    "trust": "third-party backends that need no certificate; `only`, `prefer` and `pin` let in what they name as well",
    "rank_hooks": "plugins whose order counts, the first one first",
    "rules": "conditions, and what is laid over the policy where they hold",
}


def render() -> str:
    """The page."""
    keys = policy_keys()
    refuse_unsaid(keys, MEANINGS, "generators/policy.py")
    rows = ((code(name), legal, default, MEANINGS[name]) for name, (legal, default) in keys.items())
    sizes = ", ".join(map(code, SIZES))
    knobs = ", ".join(code(PREFIX + name) for name in KNOBS_OF_POLICIES if name in KNOBS)
    answers = ((code(flags), name, grounds, why) for flags, (name, grounds, why) in ANSWERS.items())
    return page(
        "Policy file", INTRO, EXAMPLE, ANSWERS_OF, table(("of", "backend", "by", "because"), answers), "## Keys", table(("key", "legal", "default", "meaning"), rows), "## Rules",
        RULES.format(sizes=sizes), "## What lies over what", LAYERS.format(knobs=knobs),
    )  # fmt: skip
