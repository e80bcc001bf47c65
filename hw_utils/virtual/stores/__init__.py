"""Key-value stores of virtual ranks: `keys` is what is in them, at the engine; `torch_stores` what a rank asks."""
