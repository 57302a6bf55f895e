"""How tensors and plain values are named and described. Imports no other folder of the plug-in."""
