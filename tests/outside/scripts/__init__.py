"""A script for torchrun and a module beside it, as a program of somebody else's would lie in its folder."""
