"""The Hopper pipelines: what they refuse, what they launch; and on a Hopper GPU, what they answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attn_backends import Request, UnfitBackendError, select
from attn_backends.backends.hopper.configs import config_for, configs
from attn_backends.backends.hopper.limits import check
from attn_backends.device import Device
from attn_backends.pipeline.budget import Budget
from attn_backends.pipeline.chip import HOPPER
from tests.backends import hopper_cases as table
from tests.backends.hopper_stand_in import Kernel
from tests.backends.peer_stand_ins import suite_complaints

PLAIN: dict[str, Any] = {
    "dtype": "bfloat16", "batch": 4, "seq_q": 4096, "seq_k": 4096, "num_q_heads": 16, "num_kv_heads": 16,
    "head_dim_qk": 128, "head_dim_v": 128, "alignment": 16,
}  # fmt: skip
H200 = Device.pretend("h200")

on_hopper = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]


def reasons(device: Device = H200, **changes: Any) -> set[str]:
    """Codes of the reasons why the backend may not serve the call; none where it may."""
    decision = select(Request(**{**PLAIN, **changes}), device=device)
    (candidate,) = (candidate for candidate in decision.candidates if candidate.name == "hopper")
    return {reason.code for reason in candidate.reasons} - {"outranked"}


@pytest.mark.parametrize("width", table.WIDTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 16])
def test_it_takes_what_its_pipelines_are_for(width: int, causal: bool, kv_heads: int) -> None:
    assert reasons(head_dim_qk=width, head_dim_v=width, causal=causal, num_kv_heads=kv_heads) == set()


REFUSALS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "float32": ({"dtype": "float32"}, {"dtype"}),
    "heads of 96": ({"head_dim_qk": 96, "head_dim_v": 96}, {"head_dim", "head_dim_v"}),
    "values narrower than keys": ({"head_dim_v": 96}, {"head_dim_v"}),
    "memory that TMA cannot read": ({"alignment": 8}, {"alignment"}),
    "a slice of the head": ({"q_strides": (4096 * 4096, 4096, 256, 2)}, {"strides"}),
    "gradients": ({"needs_backward": True}, {"backward"}),
    "a window": ({"window_left": 128}, {"window"}),
    "a softcap": ({"softcap": 30.0}, {"softcap"}),
    "a mask": ({"mask": "bool"}, {"mask"}),
    "the other diagonal": ({"causal": True, "causal_alignment": "top_left", "seq_q": 100}, {"causal_alignment"}),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_it_refuses_what_it_cannot(name: str) -> None:
    """By the property's own code, before anything is loaded or compiled."""
    changes, codes = REFUSALS[name]
    assert reasons(**changes) == codes


@pytest.mark.parametrize("name", ["a100", "rtx 4090", "b200", "rtx 5090"])
def test_it_is_for_hopper_alone(name: str) -> None:
    assert "arch" in reasons(Device.pretend(name))


def test_a_forced_call_that_does_not_fit_says_what_is_wrong() -> None:
    with pytest.raises(UnfitBackendError, match="dtype: got float32"):
        select(Request(**{**PLAIN, "dtype": "float32"}), backend="hopper", device=H200)


def test_too_little_shared_memory_is_refused_with_numbers() -> None:
    """Should a device of this architecture have less than the pipeline takes."""
    (reason,) = check(Request(**PLAIN), Device.pretend("h200", smem_bytes=100_000))
    assert (reason.code, reason.got) == ("smem", 128)
    assert str(Budget(plan=config_for(128, False, 1024).plan, chip=HOPPER).shared) in str(reason)


def test_there_is_a_pipeline_per_width_and_mask() -> None:
    """Whatever the number of queries; a row that serves short calls alone stands before the one that serves all."""
    for width in table.WIDTHS:
        for causal in (False, True):
            rows = [config for config in configs() if (config.head_dim, config.causal) == (width, causal)]
            assert [bool(row.longest) for row in rows] == [True] * (len(rows) - 1) + [False]
            for row in rows[:-1]:
                assert config_for(width, causal, row.longest) is row
                assert config_for(width, causal, row.longest + 1) is not row


class TestLaunch:
    """What the adapter hands to the kernel, seen on tensors without memory."""

    @pytest.fixture
    def launched(self, monkeypatch: pytest.MonkeyPatch):
        pytest.importorskip("triton")
        from attn_backends.backends.hopper import launch

        kernel = Kernel()
        monkeypatch.setattr(launch, "attention_forward", kernel)
        monkeypatch.setattr(launch, "multiprocessors", lambda _device: 132)
        return kernel.launches

    def run(self, width: int = 128, **fields: Any):
        from attn_backends.backends.hopper.adapter import run
        from attn_backends.backends.hopper.compile_only import meta_call

        call = meta_call(width, **fields)
        run(call)
        return call

    @pytest.mark.parametrize(("batch", "seq", "blocks"), [(1, 1, 4), (2, 1000, 64), (8, 1000, 132)])
    def test_blocks_are_tickets_or_multiprocessors(self, launched, batch, seq, blocks) -> None:
        self.run(batch=batch, seq=(seq, seq))
        assert launched[-1][0] == (blocks,)

    @pytest.mark.parametrize("layout", ["bshd", "bhsd"])
    def test_descriptors_are_over_batch_head_token_width(self, launched, layout) -> None:
        call = self.run(layout=layout, seq=(1000, 1111))
        q, k, v, out = launched[-1][1][:4]
        assert [list(d.shape) for d in (q, k, v, out)] == [
            [2, 4, 1000, 128], [2, 2, 1111, 128], [2, 2, 1111, 128], [2, 4, 1000, 128]
        ]  # fmt: skip
        assert [d.block_shape[2] for d in (q, k, v, out)] == [64, 128, 128, 64]
        heads, tokens = (2, 1) if layout == "bshd" else (1, 2)
        assert list(q.strides) == [call.q.stride(dim) for dim in (0, heads, tokens, 3)]

    def test_sizes_and_scale(self, launched) -> None:
        self.run(seq=(1000, 1111), causal=True, softmax_scale=0.5)
        scale, batch, heads, group, seq_q, seq_k, sweep = launched[-1][1][8:]
        assert scale == pytest.approx(0.5 / 0.6931471805599453)
        assert (batch, heads, group, seq_q, seq_k) == (2, 4, 2, 1000, 1111)
        assert sweep == 8  # all of them fit the L2 cache
        assert not launched[-1][2]["EVEN_K"]

    @pytest.mark.parametrize(("scale", "sign", "size"), [(-0.5, -1, 0.5), (0.0, 0, 1.0)])
    def test_the_kernel_gets_a_positive_scale(self, launched, scale, sign, size) -> None:
        """The sign goes into the queries, and the caller's stay as they are."""
        q = torch.randn(1, 3, 1, 64).bfloat16()
        before = q.clone()
        self.run(64, q=q, k=q, v=q, out=torch.empty_like(q), softmax_scale=scale)
        descriptor, given = launched[-1][1][0], launched[-1][1][8]
        assert torch.equal(descriptor.base.transpose(1, 2), before * sign)
        assert given == pytest.approx(size / 0.6931471805599453)
        assert torch.equal(q, before)

    def test_a_sweep_holds_what_the_cache_holds(self, launched) -> None:
        """K and V of one head of 16384 tokens are 8 MiB: four of them are worked on at a time."""
        self.run(batch=1, heads=(16, 16), seq=(16384, 16384), causal=True)
        assert launched[-1][1][-1] == 4

    def test_one_query_head_of_one_sequence_needs_no_strides_that_matter(self, launched) -> None:
        """TMA wants multiples of 16 bytes; a dimension of size 1 has any stride."""
        call = self.run()
        q = torch.empty_strided((1, 7, 1, 128), (3, 128, 1, 1), dtype=torch.bfloat16, device="meta")
        fields = {"q": q, "out": torch.empty_like(q), "k": call.k[:1, :, :1], "v": call.v[:1, :, :1]}
        self.run(batch=1, **fields)
        assert all(stride % 8 == 0 for stride in launched[-1][1][0].strides[:3])

    def test_an_output_that_tma_cannot_write_is_written_by_way_of_another(self, launched) -> None:
        base = torch.empty(2, 1000, 4, 130, dtype=torch.bfloat16, device="meta")
        call = self.run(out=base[..., :128])
        assert launched[-1][1][3].base is not call.out
        assert list(launched[-1][1][3].shape) == [2, 4, 1000, 128]

    def test_no_lse_is_asked_for_and_the_kernel_has_room_all_the_same(self, launched) -> None:
        self.run()
        lse = launched[-1][1][4]
        assert (tuple(lse.shape), lse.dtype) == ((2, 4, 1000), torch.float32)


def test_the_suite_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the conformance suite's items against manifest and adapter, with plain operations in the kernel's place."""
    pytest.importorskip("triton")
    from attn_backends.backends.hopper import launch

    monkeypatch.setattr(launch, "attention_forward", Kernel())
    monkeypatch.setattr(launch, "multiprocessors", lambda _device: 132)
    assert suite_complaints("hopper", every=10) == []


@pytest.mark.parametrize("shape", ["no queries", "no keys"])
def test_nothing_to_see_gives_zeros_and_minus_infinity(shape: str) -> None:
    """Without a kernel, so on any device."""
    pytest.importorskip("triton")
    from attn_backends.backends.hopper.adapter import run
    from attn_backends.call import Call

    batch, heads, kv_heads, seq_q, seq_k = table.SHAPES[shape]
    q, k = torch.ones(batch, seq_q, heads, 64), torch.ones(batch, seq_k, kv_heads, 64)
    lse = torch.full((batch, heads, seq_q), torch.nan)
    call = Call(q=q, k=k, v=k, out=torch.full_like(q, torch.nan), lse=lse, softmax_scale=0.125)
    run(call)
    assert (call.out == 0).all()
    assert (lse == -torch.inf).all()


class TestOnHopper:
    """Against float64, on the GPU."""

    pytestmark = on_hopper

    @pytest.mark.parametrize("width", table.WIDTHS)
    @pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
    @pytest.mark.parametrize("name", table.SHAPES)
    def test_answers(self, name: str, width: int, causal: bool) -> None:
        torch.manual_seed(0)
        found = table.differences(table.call_of(table.SHAPES[name], width, causal=causal))
        assert found["empty"] == 0
        assert found["out"] < 6e-3
        assert found["lse"] < 1e-3

    @pytest.mark.parametrize("width", table.WIDTHS)
    @pytest.mark.parametrize("layout", ["bshd", "bhsd"])
    @pytest.mark.parametrize("scale", [0.02, 1.0, 0.0, -0.1])
    def test_layouts_and_scales(self, width: int, layout: str, scale: float) -> None:
        call = table.call_of(table.SHAPES["more keys"], width, causal=True, layout=layout, softmax_scale=scale)
        found = table.differences(call)
        assert found["out"] < 6e-3
        assert found["lse"] < 1e-3

    @pytest.mark.parametrize("width", table.WIDTHS)
    @pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
    def test_a_thousand_runs_agree_bit_for_bit(self, width: int, causal: bool) -> None:
        """A race between copies and products shows as a difference sooner or later."""
        call = table.call_of((2, 20, 4, 777, 1300), width, causal=causal)
        from attn_backends.backends.hopper.adapter import run

        run(call)
        out, lse = call.out.clone(), call.lse.clone()
        for _ in range(1000):
            call.out.fill_(torch.nan)
            run(call)
            assert torch.equal(call.out, out)
            assert torch.equal(call.lse, lse)

    def test_values_that_some_rows_do_not_see_stay_out_of_them(self) -> None:
        """1e30 behind the diagonal changes no row before it, not by a bit."""
        call = table.call_of((1, 2, 2, 300, 300), 128, causal=True)
        from attn_backends.backends.hopper.adapter import run

        run(call)
        before = call.out.clone()
        call.v[:, 200:] = 1e30
        run(call)
        assert torch.equal(call.out[:, :200], before[:, :200])

    @pytest.mark.parametrize("width", table.WIDTHS)
    def test_nan_that_a_row_sees_is_nan(self, width: int) -> None:
        """Rows before the key stay as they are, those from it on say so and are not taken for rows that saw nothing."""
        call = table.call_of((1, 2, 2, 300, 300), width, causal=True)
        from attn_backends.backends.hopper.adapter import run

        run(call)
        before = call.out.clone(), call.lse.clone()
        call.k[:, 200] = torch.nan
        run(call)
        assert torch.equal(call.out[:, :200], before[0][:, :200])
        assert torch.equal(call.lse[..., :200], before[1][..., :200])
        assert call.out[:, 200:].isnan().all()
        assert call.lse[..., 200:].isnan().all()

    @pytest.mark.parametrize("width", table.WIDTHS)
    def test_a_graph_replayed_beside_other_calls_answers(self, width: int) -> None:
        """What is captured draws its tickets from a counter of its own; two streams have one each."""
        from attn_backends.backends.hopper.adapter import run

        call = table.call_of((2, 8, 4, 1500, 1500), width, causal=True)
        run(call)
        right = call.out.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(call)
        others = [table.call_of((2, 8, 4, 1500, 1500), width, causal=True) for _ in range(2)]
        streams = [torch.cuda.Stream() for _ in others]
        torch.cuda.synchronize()
        for _ in range(20):
            call.out.fill_(torch.nan)
            graph.replay()
            for stream, other in zip(streams, others, strict=True):
                with torch.cuda.stream(stream):
                    run(other)
        torch.cuda.synchronize()
        assert torch.equal(call.out, right)
        for other in others:
            assert table.differences(other)["out"] < 6e-3
