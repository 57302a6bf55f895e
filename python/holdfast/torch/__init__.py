"""The PyTorch plug-in: the only part of Holdfast that imports torch.

It reads what a training process holds (parameters, buffers, optimizer, generators, objects
with a state_dict) as named pieces and plain objects, and writes it back in place. Part and
Sharded are for rules (`spec=`) about tensors that do not show how they are cut.
"""

from holdfast.torch.values.boxes import Part, Sharded

__all__ = ["Part", "Sharded"]
