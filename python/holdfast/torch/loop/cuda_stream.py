"""The CUDA stream in which training runs."""

import torch


def current_stream() -> int:
    """The raw handle of the current CUDA stream; 0 if CUDA is not in use.

    Avoids torch.cuda.current_stream(), which takes 20 µs.
    """
    if not torch.cuda.is_initialized():
        return 0
    return torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
