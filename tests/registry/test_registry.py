"""The registry: names, loading once, remembered failures, checks, certificates, many threads."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from attn_backends import (
    AttnBackendsError,
    DuplicateBackendError,
    Environment,
    LoadError,
    ManifestError,
    Reason,
    Registry,
    UnknownBackendError,
    attention,
    cache_info,
    list_backends,
    register,
    select,
    unregister,
)
from attn_backends.registry.certificates import certificate_of, read_certificates, source_digest
from attn_backends.registry.loading import load_backend
from tests.selector.scenes import BOX, backend, codes, decide, registry, request, run_python, third_party


@pytest.mark.parametrize("second", ["my_fa", "my-fa"], ids=["same", "dash"])
def test_a_name_is_taken_once(second):
    """Duplicate names, dashes and underscores alike, are an error that says who has it; nothing changes."""
    made = registry(backend("my_fa", priority=3))
    before = made.snapshot()
    with pytest.raises(DuplicateBackendError, match="my_fa"):
        made.register(backend(second), print)
    assert made.snapshot() is before


def test_a_built_in_name_is_taken():
    """Nobody registers over eager."""
    with pytest.raises(DuplicateBackendError, match=r"eager/backend\.toml"):
        register(backend("eager"), print)


@pytest.mark.parametrize(
    "act", [lambda r, n: r.unregister(n), lambda r, n: decide(r, backend=n)], ids=["unregister", "select"]
)
def test_an_unknown_name_gets_the_nearest(act):
    """The error lists names that are near."""
    made = registry(backend("my_flash"), backend("other"))
    with pytest.raises(UnknownBackendError, match=r"my_flsh.*my_flash"):
        act(made, "my_flsh")


def test_register_and_unregister_in_this_process():
    """The process's own registry takes a backend and gives it back."""
    names = {manifest.name for manifest in list_backends()}
    register(backend("for_a_moment"), lambda call: None)
    try:
        assert {manifest.name for manifest in list_backends()} == names | {"for_a_moment"}
        assert select(request(), device="h200", backend="for_a_moment").backend == "for_a_moment"
    finally:
        unregister("for_a_moment")
    assert {manifest.name for manifest in list_backends()} == names


def test_an_unregistered_name_can_come_back():
    """unregister frees the name, and a failure of the old one is forgotten."""
    made = registry(backend("x", kernel="no_such_module:run"))
    made.unregister("x")
    made.register(backend("x"), print)
    assert made.load("x").run is print


def test_a_file_is_registered_with_a_function(tmp_path):
    """register(path, fn) reads a backend.toml and takes the callable."""
    lines = "\n".join(f"{axis} = {json.dumps(value)}" for axis, value in BOX.items())
    head = 'schema = 1\nname = "filed"\nversion = "1.0"\napi = ">=1.0,<2"\nkernel = "nowhere:run"\n'
    (tmp_path / "backend.toml").write_text(f"{head}[[capability]]\n{lines}\n")
    made = Registry(builtin=False, autoload=False)
    made.register(tmp_path / "backend.toml", print)
    assert made.load("filed").run is print
    assert decide(made).backend == "filed"


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("no_such_module_here:run", ["no_such_module_here", "ModuleNotFoundError"]),
        ("json:no_such_name", ["json", "no_such_name"]),
    ],
    ids=["module", "callable"],
)
def test_a_failed_load_is_remembered(kernel, words):
    """The first load raises LoadError with the cause; afterwards the backend is out with the same text."""
    made = Registry(builtin=False, autoload=False)
    made.register(third_party("bad", kernel=kernel, priority=9))
    made.register(backend("good"), print)
    assert decide(made, {"trust": ["bad"]}).backend == "bad"
    with pytest.raises(LoadError) as caught:
        made.load("bad")
    assert all(word in str(caught.value) for word in words)
    with pytest.raises(LoadError, match=words[0]):
        made.load("bad")
    decision = decide(made, {"trust": ["bad"]})
    assert decision.backend == "good"
    assert codes(decision, "bad") == {"load_error"}
    assert words[0] in str(decision.candidate("bad").reasons[0])


CPU = {**BOX, "device": ["cpu"], "scale": "any"}


def test_a_call_goes_on_without_a_backend_that_does_not_load():
    """attention() leaves the broken backend out, decides again, and serves the call; the next one does not try."""
    torch = pytest.importorskip("torch")
    raw = {**third_party("does_not_load", kernel="no_such_module_here:run", priority=999).raw, "capability": [CPU]}
    raw["name"] = "does_not_load"
    from attn_backends.registry.manifest import read_manifest

    register(read_manifest(raw, label="does_not_load/backend.toml", origin="in_process"))
    try:
        q = torch.randn(1, 3, 2, 16)
        out = attention(q, q, q)
        assert torch.equal(out, attention(q, q, q, backend="sdpa_cpu_flash"))
        before = cache_info().resolutions
        attention(q, q, q)
        assert cache_info().resolutions == before
        with pytest.raises(AttnBackendsError, match="no_such_module_here"):
            attention(q, q, q, backend="does_not_load")
    finally:
        unregister("does_not_load")


def test_an_explicit_choice_that_does_not_load_raises():
    """backend= with a broken module raises LoadError at the call; nobody steps in."""
    torch = pytest.importorskip("torch")
    from attn_backends.registry.manifest import read_manifest

    raw = {"schema": 1, "version": "1", "api": ">=1.0", "name": "broken_choice", "kernel": "no_such_module_here:run"}
    register(read_manifest({**raw, "capability": [CPU]}, label="broken_choice", origin="in_process"))
    try:
        q = torch.randn(1, 3, 2, 16)
        with pytest.raises(LoadError, match="no_such_module_here") as caught:
            attention(q, q, q, backend="broken_choice")
        assert caught.value.decision.backend == "broken_choice"
    finally:
        unregister("broken_choice")


@pytest.mark.parametrize(
    ("check", "out"),
    [
        (lambda request, device: [], set()),
        (lambda request, device: None, set()),
        (lambda request, device: [Reason("smem", "smem", 300_000, "at most 232448", "too big")], {"smem"}),
        (lambda request, device: 1 / 0, {"check"}),
        (lambda request, device: ["no reason"], {"check"}),
        (lambda request, device: exec("raise SystemExit('bye')"), {"check"}),
        (lambda request: [], {"check"}),
    ],
    ids=["fits", "nothing", "smem", "raises", "no-reasons", "system-exit", "wrong-signature"],
)
def test_a_check_is_isolated(check, out):
    """A check's reasons count; one that raises, leaves or answers nonsense is itself the reason."""
    made = Registry(builtin=False, autoload=False)
    made.register(backend("checked", priority=9), print, check=check)
    made.register(backend("other"), print)
    decision = decide(made)
    assert codes(decision, "checked") == out
    assert decision.backend == ("other" if out else "checked")


def test_listing_and_forcing_run_no_check_before_they_must():
    """Listing asks no check; a backend that is out by its boxes is not checked either."""
    asked = []
    made = Registry(builtin=False, autoload=False)
    made.register(backend("narrow", box={"dtype": ["float16"]}), print, check=lambda *a: asked.append(a) or [])
    assert made.snapshot().names() == ("narrow",)
    decide(made)
    assert asked == []


@pytest.mark.parametrize(
    ("policy", "arguments", "winner"),
    [
        ({}, {}, "own"),
        ({"trust": ["tp"]}, {}, "tp"),
        ({"prefer": ["tp"]}, {}, "tp"),
        ({"only": ["tp"]}, {}, "tp"),
        ({}, {"backend": "tp"}, "tp"),
        ({"block": ["own"]}, {}, None),
    ],
    ids=["unnamed", "trust", "prefer", "only", "backend", "nobody-else"],
)
def test_third_parties_are_opt_in(policy, arguments, winner):
    """Installing a package changes no decision; naming it does."""
    made = Registry(builtin=False, autoload=False)
    made.register(third_party("tp", priority=99))
    made.register(backend("own"), print)
    assert decide(made, policy, **arguments).backend == winner


@pytest.mark.parametrize("valid", [True, False])
def test_a_certificate_is_for_one_version_of_the_sources(valid):
    """The certificate on this machine counts for the exact digest alone."""
    manifest = third_party("tp", priority=99)
    name, version, digest, arch = certificate_of(manifest, "sm_90")
    made = Registry(builtin=False, autoload=False)
    made.register(manifest)
    made.register(backend("own"), print)
    held = (name, version, digest if valid else "0" * 64, arch)
    decision = decide(made, environment=Environment(assume_met=True, certificates=frozenset({held})))
    assert decision.backend == ("tp" if valid else "own")
    if not valid:
        assert "other sources" in str(decision.candidate("tp").reasons[0])


def test_a_changed_source_voids_its_certificate(tmp_path):
    """One byte in a kernel file beside the manifest changes the digest."""
    lines = "\n".join(f"{axis} = {json.dumps(value)}" for axis, value in BOX.items())
    head = 'schema = 1\nname = "filed"\nversion = "1.0"\napi = ">=1.0,<2"\nkernel = "nowhere:run"\n'
    (tmp_path / "backend.toml").write_text(f"{head}[[capability]]\n{lines}\n")
    (tmp_path / "kernel.py").write_text("x = 1\n")
    made = Registry(builtin=False, autoload=False)
    manifest = made.register(tmp_path / "backend.toml")
    before = source_digest(manifest)
    assert source_digest(manifest) == before
    (tmp_path / "kernel.py").write_text("x = 2\n")
    assert source_digest(manifest) != before


def test_sources_that_change_places_are_other_sources(tmp_path):
    """The digest is of paths within the folder, not of names alone: two files swapped between folders are a change."""
    texts = {"sm_80": "x = 1\n", "sm_90": "x = 2\n"}
    for folder, text in texts.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kernel.py").write_text(text)
    manifest = dataclasses.replace(third_party("tp"), folder=tmp_path)
    before = source_digest(manifest)
    for folder, text in zip(texts, reversed(texts.values()), strict=True):
        (tmp_path / folder / "kernel.py").write_text(text)
    assert source_digest(manifest) != before


def test_a_certificate_is_for_one_architecture():
    """Earned on sm_90 it holds on every device of that, says nothing of sm_80, and the reason names both."""
    manifest = third_party("tp", priority=99)
    made = Registry(builtin=False, autoload=False)
    made.register(manifest)
    made.register(backend("own"), print)
    environment = Environment(assume_met=True, certificates=frozenset({certificate_of(manifest, "sm_90")}))
    decisions = {name: decide(made, device=name, environment=environment) for name in ("a100", "h100", "h200")}
    assert {name: one.backend for name, one in decisions.items()} == {"a100": "own", "h100": "tp", "h200": "tp"}
    (reason,) = decisions["a100"].candidate("tp").reasons
    assert (reason.got, reason.want) == ("a certificate for sm_90 alone", "a certificate for sm_80")


def test_damaged_certificates_count_for_nothing(tmp_path, caplog):
    """A readable certificate is found beside damaged ones, which are reported by name."""
    (tmp_path / "good.json").write_text('{"backend": "a", "version": "1", "digest": "d", "arch": "cpu"}')
    (tmp_path / "nowhere.json").write_text('{"backend": "a", "version": "1", "digest": "d"}')
    (tmp_path / "torn.json").write_text('{"backend": "a"')
    (tmp_path / "other.json").write_text("[]")
    assert read_certificates(tmp_path) == {("a", "1", "d", "cpu")}
    assert "torn.json" in caplog.text
    assert "other.json" in caplog.text
    assert "nowhere.json" in caplog.text


@pytest.mark.parametrize(
    ("requires", "versions", "met"),
    [
        (["torch>=2.6"], {"torch": "2.13.0+cpu"}, True),
        (["torch>=2.6"], {"torch": "2.5.1"}, False),
        (["torch>=2.6,<2.14"], {"torch": "2.13.0.dev1"}, True),
        (["Torch_Vision>=1"], {"torch-vision": "1.0"}, True),
        (["absent>=1"], {}, False),
        (["absent>=1; python_version < '3'"], {}, True),
        (["torch"], {"torch": "0.1"}, True),
    ],
)
def test_requirements_are_specifiers(requires, versions, met):
    """Names are normalised, local and pre-release versions count, markers of other Pythons are met."""
    made = registry(backend("a", requires=requires))
    decision = decide(made, environment=Environment(versions=tuple(versions.items())))
    assert (decision.backend == "a") == met
    if not met:
        assert codes(decision, "a") == {"requirement"}
        assert "pip install" in decision.candidate("a").reasons[0].hint


def test_threads_load_a_backend_once():
    """Sixteen threads that load at once get one result, from one import."""
    made = registry(backend("a"))
    barrier = threading.Barrier(16)

    def load() -> int:
        barrier.wait()
        return id(made.load("a"))

    with ThreadPoolExecutor(16) as pool:
        found = {future.result() for future in [pool.submit(load) for _ in range(16)]}
    assert len(found) == 1


def test_registering_and_selecting_at_once():
    """Eight threads register, unregister and select: every answer is a backend of its own snapshot, no error is untyped."""
    made = registry(backend("always"))
    stop = threading.Event()

    def change(seed: int) -> int:
        rng, done = random.Random(seed), 0
        name = f"sometimes_{seed}"
        for _ in range(40):
            made.register(backend(name, priority=rng.randint(-3, 3)), print)
            made.unregister(name)
            done += 1
        return done

    def ask() -> int:
        asked = 0
        while not stop.is_set() or asked < 20:
            decision = decide(made)
            assert decision.backend is not None
            assert decision.backend in {candidate.name for candidate in decision.candidates}
            asked += 1
        return asked

    with ThreadPoolExecutor(8) as pool:
        changing = [pool.submit(change, seed) for seed in range(4)]
        asking = [pool.submit(ask) for _ in range(4)]
        assert [future.result() for future in changing] == [40] * 4
        stop.set()
        assert all(future.result() >= 20 for future in asking)
    assert made.snapshot().names() == ("always",)
    assert decide(made).backend == "always"


@pytest.mark.parametrize("given", [5, None, 1.5, ["a"]], ids=repr)
def test_what_is_no_manifest_and_no_name_is_refused(given):
    """register and unregister answer other kinds of values with their own errors."""
    made = registry()
    with pytest.raises(ManifestError, match="register"):
        made.register(given)
    with pytest.raises(UnknownBackendError):
        made.unregister(given)


def test_a_manifest_is_registered_with_other_callables():
    """The given function is what runs; the manifest it was given beside is left as it was."""
    first = Registry(builtin=False, autoload=False)
    manifest = first.register(backend("x"), print)
    second = Registry(builtin=False, autoload=False)
    second.register(manifest, repr, check=lambda *_: [])
    assert second.load("x").run is repr
    assert second.snapshot().get("x").offers("check")
    assert (first.load("x").run, manifest.offers("check")) == (print, False)


def test_an_unregistered_built_in_stays_out():
    """refresh, and by that clear_cache, brings no backend back that was taken out; registering it does."""
    made = Registry(autoload=False)
    manifest = made.snapshot().get("eager")
    made.unregister("eager")
    made.refresh()
    assert "eager" not in made.snapshot().names()
    made.register(manifest, print)
    made.refresh()
    assert made.load("eager").run is print


def test_a_kernel_is_never_of_the_registration_before(monkeypatch):
    """A backend that is registered anew while its module loads is loaded anew; so is a failure forgotten."""
    for kernel in ("json:dumps", "no_such_module:run"):
        made = Registry(builtin=False, autoload=False)
        made.register(backend("x", kernel=kernel))

        def load(manifest, made=made):
            if not manifest.functions:
                made.unregister("x")
                made.register(backend("x"), print)
            return load_backend(manifest)

        monkeypatch.setattr("attn_backends.registry.registry.load_backend", load)
        assert made.load("x").run is print
        assert made.load("x").run is print
        assert made.snapshot().failures == {}


def test_a_check_is_never_of_the_registration_before():
    """A check that is asked of an old manifest is not kept for the new one."""
    made = Registry(builtin=False, autoload=False)
    old = made.register(backend("x"), print, check=lambda *_: 1 / 0)
    made.unregister("x")
    new = made.register(backend("x"), print, check=lambda *_: [])
    device = decide(made).device
    assert made.run_check(old, request(), device)[0].code == "check"
    assert made.run_check(new, request(), device) == ()


SLOW = """
import threading, time
from attn_backends.registry.registry import default_registry
at_import.set()
loading.wait(20)
time.sleep(0.2)  # the other thread now waits for this module
default_registry().register({"name": "registered_at_import", "capability": [{}]}, print)
def run(call): pass
"""


def test_a_module_may_register_at_import_while_another_thread_loads_it():
    """One thread imports the module, another loads its backend: neither waits for the other for ever."""
    done = run_python(f"""
import importlib.abc, importlib.util, sys, threading
import attn_backends
from attn_backends.registry.registry import default_registry
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "slow_module" else None
    def exec_module(self, module):
        vars(module).update(at_import=at_import, loading=loading)
        exec({SLOW!r}, vars(module))
at_import, loading = threading.Event(), threading.Event()
sys.meta_path.insert(0, Finder())
attn_backends.register({{"name": "slow", "kernel": "slow_module:run", "capability": [{{}}]}})
threads = [threading.Thread(target=lambda: __import__("slow_module"), daemon=True),
           threading.Thread(target=lambda: (at_import.wait(20), loading.set(), default_registry().load("slow")), daemon=True)]
for thread in threads: thread.start()
for thread in threads: thread.join(20)
print([thread.is_alive() for thread in threads], [m.name for m in attn_backends.list_backends() if "import" in m.name])
""")
    assert done.stdout.strip() == "[False, False] ['registered_at_import']", done.stderr
