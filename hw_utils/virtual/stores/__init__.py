"""Key-value stores of virtual ranks: `store_contents`, at the engine, and `torch_stores`, which a rank asks."""
