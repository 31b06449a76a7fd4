"""torch's flash attention for CPUs."""
