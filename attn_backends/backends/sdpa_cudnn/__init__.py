"""cuDNN's fused attention through torch, on CUDA."""
