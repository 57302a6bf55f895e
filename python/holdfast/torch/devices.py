"""Prints how many GPUs torch sees: python -m holdfast.torch.devices

`holdfast launch -n gpu` asks in a process of its own: a launcher that had touched CUDA could not fork
ranks that use it.
"""

import torch

if __name__ == "__main__":
    print(torch.cuda.device_count())
