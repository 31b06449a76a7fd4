"""FlashInfer's FA2 kernels on sm_90: paged decode, append and prefill, packed and dense prefill."""
