"""Kernels attributed to decisions: out of told traces, on a CPU, and on a GPU beside torch.profiler's own list."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from attn_backends import AttnBackendsError, RequestError, attention, profile, watch_graphs
from attn_backends.host import graphs
from attn_backends.host.attribution import Use, attribute, is_label, launch_label, replay_label
from attn_backends.host.evidence import level
from attn_backends.host.launch import Bound

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def event(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def marker(identity, ts, dur, what="forward", tid=1, on_gpu=True):
    return event("user_annotation", launch_label(identity, what, on_gpu=on_gpu), ts, dur, tid)


def kernel(name, number, launched, ts, tid=1, cat="cuda_runtime", call="cudaLaunchKernel"):
    """A kernel of one microsecond, launched by a call."""
    return [
        event(cat, call, launched, 1, tid, correlation=number),
        event("kernel", name, ts, 1.0, 7, correlation=number),
    ]


def names(uses):
    return Counter((use.id, use.name, use.replayed) for use in uses)


class TestTraces:
    def test_a_kernel_belongs_to_the_marker_of_its_launch(self):
        """By its launching call, however late it runs; driver calls (Triton's) count as runtime ones do."""
        trace = [
            marker("a", 0, 10), *kernel("flash", 1, 5, 100),
            marker("b", 20, 10), *kernel("mine", 2, 25, 101, cat="cuda_driver", call="cuLaunchKernelEx"),
            *kernel("gemm", 3, 15, 102),
        ]  # fmt: skip
        assert names(attribute(trace, {})) == {
            ("a", "flash", False): 1,
            ("b", "mine", False): 1,
            (None, "gemm", False): 1,
        }

    def test_threads_are_kept_apart(self):
        """Another thread's launch at the same moment is not inside the marker."""
        trace = [marker("a", 0, 10, tid=1), *kernel("k", 1, 5, 100, tid=2), *kernel("k", 2, 6, 101, tid=1)]
        assert names(attribute(trace, {})) == {(None, "k", False): 1, ("a", "k", False): 1}

    def test_the_innermost_marker_counts(self):
        """A call inside a call."""
        trace = [marker("outer", 0, 100), marker("inner", 10, 10), *kernel("k", 1, 15, 200), *kernel("k", 2, 50, 201)]
        assert names(attribute(trace, {})) == {("inner", "k", False): 1, ("outer", "k", False): 1}

    def test_a_kernel_without_its_call_is_nobodys(self):
        """A trace that was cut."""
        trace = [marker("a", 0, 10), event("kernel", "k", 5, 1, correlation=9)]
        assert names(attribute(trace, {})) == {(None, "k", False): 1}

    def test_a_name_that_starts_as_a_label_does_is_none(self):
        """Kernels of this package, demangled, and a user's own annotations: neither is a marker."""
        ours = "attn_backends::backends::numba_mma::kernel::attention(long long)"
        assert not is_label(ours)
        assert is_label(launch_label("a", "backward", on_gpu=True))
        assert is_label(replay_label(3))
        trace = [marker("a", 0, 10), event("user_annotation", ours, 4, 3), *kernel(ours, 1, 5, 100)]
        assert names(attribute(trace, {})) == {("a", ours, False): 1}

    def replay(self, graph, first, ts, *kernels):
        """A replay: one call, many kernels."""
        call = event("cuda_runtime", "cudaGraphLaunch", ts + 1, 1, correlation=first)
        ran = [event("kernel", name, ts + 10 + place, 1.0, 7, correlation=first) for place, name in enumerate(kernels)]
        return [event("user_annotation", replay_label(graph), ts, 5), call, *ran]

    def test_a_replay_is_told_apart_by_the_order_of_its_launches(self):
        """Two decisions with the same kernels, captured in turn, other kernels between them."""
        eager = [
            marker("a", 0, 10), *kernel("split", 1, 2, 100), *kernel("merge", 2, 3, 101),
            marker("b", 20, 10), *kernel("split", 3, 22, 102),
        ]  # fmt: skip
        ran = ["gemm", "split", "merge", "gemm", "split", "gemm"]
        trace = [*eager, *self.replay(4, 50, 1000, *ran), *self.replay(4, 51, 2000, *ran)]
        uses = attribute(trace, {4: [("a", "forward"), ("b", "forward")]})
        assert names(uses) == {
            ("a", "split", False): 1, ("a", "merge", False): 1, ("b", "split", False): 1,
            ("a", "split", True): 2, ("a", "merge", True): 2, ("b", "split", True): 2, (None, "gemm", True): 6,
        }  # fmt: skip

    def test_forward_and_backward_of_one_decision_are_two_launches(self):
        """A captured training step."""
        eager = [
            marker("a", 0, 10),
            *kernel("fwd", 1, 2, 100),
            marker("a", 20, 10, what="backward"),
            *kernel("bwd", 2, 22, 101),
        ]
        uses = attribute(
            [*eager, *self.replay(0, 9, 500, "fwd", "loss", "bwd")], {0: [("a", "forward"), ("a", "backward")]}
        )
        assert names(uses)["a", "bwd", True] == names(uses)["a", "fwd", True] == names(uses)[None, "loss", True] == 1

    def test_what_was_never_launched_eagerly_is_not_guessed(self):
        """Its kernels in a replay are nobody's."""
        assert names(attribute(self.replay(0, 9, 500, "k"), {0: [("a", "forward")]})) == {(None, "k", True): 1}

    def test_on_a_cpu_operators_have_their_own_time(self):
        """Without that of the operators inside them; GPU markers have none."""
        trace = [
            marker("a", 0, 100, on_gpu=False), event("cpu_op", "outer", 10, 50), event("cpu_op", "inner", 20, 30),
            event("cpu_op", "after", 70, 5), event("cpu_op", "outside", 200, 5),
            marker("b", 300, 100), event("cpu_op", "host", 310, 5),
        ]  # fmt: skip
        assert attribute(trace, {}) == [
            Use("a", "outer", 20.0, "cpu", False), Use("a", "inner", 30.0, "cpu", False), Use("a", "after", 5.0, "cpu", False),
        ]  # fmt: skip


class TestOnTheCpu:
    @pytest.fixture
    def q(self):
        return torch.randn(1, 16, 2, 16)

    def test_operators_are_attributed_to_their_decision(self, q):
        """Two decisions, three launches; what runs outside of attention belongs to neither."""
        with torch.no_grad(), profile() as found:
            attention(q, q, q, backend="sdpa_math")
            attention(q, q, q, backend="sdpa_math")
            attention(q, q, q, backend="eager", causal=True)
            torch.tan(q)
        assert sorted((one.backend, one.launches) for one in found.launches.values()) == [
            ("eager", 1),
            ("sdpa_math", 2),
        ]
        by_backend = {found.launches[identity].backend: own for identity, own in found.kernels.items()}
        assert next(kernel.count for kernel in by_backend["sdpa_math"] if kernel.name == "aten::_softmax") == 2
        assert not any("tan" in kernel.name for own in by_backend.values() for kernel in own)
        assert all(kernel.device == "cpu" for own in by_backend.values() for kernel in own)
        assert {level(identity) for identity in found.launches} == {"profiled"}
        assert all(found.device_us(identity) > 0 for identity in found.launches)
        assert set(found.to_json()["decisions"]) == set(found.launches)

    def test_loaded_kernels_and_gradients_are_marked_too(self, q):
        """The hot loop and autograd's thread."""
        leaf = q.clone().requires_grad_()
        with profile() as found:
            attention(leaf, q, q, backend="sdpa_math").sum().backward()
        (identity,) = found.launches
        assert found.launches[identity].backwards == 1
        assert any("backward" in kernel.name for kernel in found.kernels[identity])

    def test_it_leaves_nothing_behind(self, q):
        """After it, also after an error inside, the methods are the very ones of before."""
        before = {name: vars(Bound)[name] for name in ("fast", "run", "backward")}
        with pytest.raises(RequestError), profile():
            attention(q, q, q, causal="yes")
        assert {name: vars(Bound)[name] for name in before} == before
        with profile():
            pass

    def test_it_does_not_nest(self):
        """torch has one profiler."""
        with profile(), pytest.raises(AttnBackendsError, match="cannot be nested"), profile():
            pass


class Block(torch.nn.Module):
    """A layer as models have it: norm, projections, attention, gated MLP."""

    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)
        )

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).contiguous() for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(attention(q, k, v, causal=True, window_left=self.window).flatten(-2))
        return x + self.mlp(x)


@pytest.fixture
def model_and_input():
    layers = [Block(512, 4, -1 if place % 2 else 63) for place in range(4)]
    model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16).eval()
    return model, torch.randn(2, 256, 512, device="cuda", dtype=torch.bfloat16)


def device_kernels(profiler):
    """torch.profiler's own list: how often each kernel ran."""
    return Counter(
        event.name for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not is_label(event.name)
    )  # fmt: skip


@pytest.mark.gpu
@NO_GPU
class TestOnTheGpu:
    def test_it_agrees_with_torchs_own_list(self, model_and_input):
        """All kernels that torch.profiler sees in a model's forward are those of decisions and the others; none twice."""
        model, x = model_and_input
        with torch.no_grad():
            model(x)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as own:
                model(x)
                torch.cuda.synchronize()
            with profile() as found:
                model(x)
        ours = Counter()
        for kernel in [*found.others, *(kernel for own_ in found.kernels.values() for kernel in own_)]:
            ours[kernel.name] += kernel.count
        assert ours == device_kernels(own)
        assert sorted(one.launches for one in found.launches.values()) == [2, 2]
        assert set(found.kernels) == set(found.launches)

    def test_it_agrees_under_graph_replay(self, model_and_input):
        """A warm-up, a capture, three replays: each decision's kernels three times as often again, counted as replays."""
        model, x = model_and_input
        with torch.no_grad():
            model(x)
            with profile() as eager:
                model(x)
            graph = torch.cuda.CUDAGraph()
            with profile() as found:
                model(x)
                with torch.cuda.graph(graph):
                    model(x)
                for _ in range(3):
                    graph.replay()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as own:
                graph.replay()
                torch.cuda.synchronize()
        for identity, record in found.launches.items():
            assert (record.launches, record.captures, record.replays) == (2, 2, 6)
            once = Counter({kernel.name: kernel.count for kernel in eager.kernels[identity]})
            assert Counter({kernel.name: kernel.replayed for kernel in found.kernels[identity]}) == Counter(
                {name: 3 * count for name, count in once.items()}
            )
        replayed = Counter()
        for kernel in [*found.others, *(kernel for own_ in found.kernels.values() for kernel in own_)]:
            replayed[kernel.name] += kernel.replayed
        assert +replayed == Counter({name: 3 * count for name, count in device_kernels(own).items()})

    def test_captures_are_counted_without_anybody_watching(self, model_and_input):
        """And replays under watch_graphs alone."""
        from attn_backends import launches
        from tests.host.test_ledger import start_anew

        model, x = model_and_input
        with torch.no_grad():
            model(x)
            start_anew()
            model(x)
            graph = torch.cuda.CUDAGraph()
            with watch_graphs(), torch.cuda.graph(graph):
                model(x)
            graph.replay()
            with watch_graphs():
                graph.replay()
        counts = [(one.launches, one.captures, one.replays) for one in launches().values()]
        assert counts == [(2, 2, 2), (2, 2, 2)]
        assert graphs.captured_launches()
