"""Key-value stores of virtual ranks: `keys` is what is in them, where the engine is; `handles` what a rank asks."""
