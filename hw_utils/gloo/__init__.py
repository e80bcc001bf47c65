"""The gloo process group that keeps the ledger: each call written down, published to the other ranks, compared.

Stands on core. `processes` takes `LedgerGroup`, the shared state and the deadlock watcher; `launch` the merged trace.
"""
