"""Whose memory can be: the owners that a storage is counted for, by name and by number."""

OWNERS = ("parameters", "gradients", "optimizer", "activations", "gathered", "buffers", "other")
PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, GATHERED, BUFFERS, OTHER = range(len(OWNERS))
