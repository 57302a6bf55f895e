"""The PyTorch plug-in: the only part of Holdfast that imports torch.

It describes what a training process holds (parameters, buffers, optimizers, generators, objects
with a state_dict) as named pieces of tensors and plain objects, and writes them back in place.

    checkpointer  holdfast.Checkpointer
    huggingface, lightning, dcp
                  adapters for other trainers
    inject        holdfast.inject and holdfast.flip_plan
    loop/         what happens at a step: when a save is made, and how it is made
    state/        what is saved
    watch/        bits that flip in memory while training runs: holdfast.Watch
    data/         loaders that can be resumed
    files/        holdfast.save and holdfast.load
    values/       how tensors and plain values are named and described

Part and Sharded are rules for tensors that do not show how they are cut: holdfast.Layout(rules=).
"""

from holdfast.torch.values.boxes import Part, Sharded

__all__ = ["Part", "Sharded"]
