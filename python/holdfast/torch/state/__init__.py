"""What is saved: the tensors and objects of a training process, and how they come back."""
