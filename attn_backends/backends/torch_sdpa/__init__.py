"""What torch's scaled-dot-product backends share: a library, not a backend. Adapters of other flash kernels use it too.

One path for all: views in [B, H, S, D] (`layout`), the part of the call that can matter (`band`), what is visible in it
(`visibility`), operands as the kernel wants them (`operands`), all of it as one `Problem` (`problem`), and back into the
caller's shapes (`deliver`). `conversions` says beforehand, from shapes alone, what `problem` is going to copy.
"""
