"""Fine code behind a name that is taken."""


def run(call):
    """Write plain attention of `bshd` tensors into call.out."""
    import torch.nn.functional as F

    q, k, v = (tensor.transpose(1, 2) for tensor in (call.q, call.k, call.v))
    call.out.copy_(F.scaled_dot_product_attention(q, k, v, scale=call.softmax_scale).transpose(1, 2))
