"""Buffers in shared memory that one side fills and the other reads, in turn, each guarded by two barriers.

Step k of a ring uses buffer k % STAGES. `full` completes when the buffer is filled, `empty` when its readers are done
with it; either completes once per lap, so that the parity of the lap says which completion to wait for. A buffer that
was never used counts as empty.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.core import _aggregate as aggregate

from attn_backends.backends.hopper.kernel.names import copy_in


@aggregate
class Ring:
    """buffers: [STAGES, ...]; full, empty: barriers, [STAGES, 1]."""

    buffers: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    STAGES: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, buffers, full, empty, STAGES):
        self.buffers = buffers
        self.full = full
        self.empty = empty
        self.STAGES = gl.constexpr(STAGES)

    @gluon.jit
    def buffer(self, step):
        """The buffer of a step."""
        return self.buffers.index(step % self.STAGES)

    @gluon.jit
    def wait_full(self, step):
        """Wait until the step's buffer is filled."""
        mbarrier.wait(self.full.index(step % self.STAGES), (step // self.STAGES) & 1)

    @gluon.jit
    def wait_empty(self, step):
        """Wait until the readers of one lap before are done."""
        mbarrier.wait(self.empty.index(step % self.STAGES), ((step // self.STAGES) & 1) ^ 1)

    @gluon.jit
    def release(self, step):
        """One reader is done with the step's buffer."""
        mbarrier.arrive(self.empty.index(step % self.STAGES), count=1)

    @gluon.jit
    def fill(self, step):
        """The step's buffer holds what was stored there."""
        mbarrier.arrive(self.full.index(step % self.STAGES), count=1)

    @gluon.jit
    def copy(self, descriptor, coordinates, step):
        """Start to fill the step's buffer from memory as soon as it is empty; cells outside the tensor become 0."""
        self.wait_empty(step)
        full = self.full.index(step % self.STAGES)
        mbarrier.expect(full, descriptor.block_type.nbytes)
        copy_in(descriptor, coordinates, full, self.buffer(step))


@gluon.jit
def new_ring(buffers, STAGES: gl.constexpr, READERS: gl.constexpr):
    """A ring of STAGES free buffers, each read by READERS warpgroups."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=READERS)
    return Ring(buffers, full, empty, STAGES)


@gluon.jit
def ring_of(descriptor, STAGES: gl.constexpr, READERS: gl.constexpr):
    """A ring for the blocks of a descriptor."""
    buffers = gl.allocate_shared_memory(descriptor.dtype, [STAGES] + descriptor.block_shape, descriptor.layout)  # noqa: RUF005  # Triton has no unpacking
    return new_ring(buffers, STAGES, READERS)
