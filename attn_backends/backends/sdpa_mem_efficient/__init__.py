"""torch's memory-efficient attention, on CUDA."""
