"""The gloo process group that keeps the ledger: each call written down, published to the other ranks, compared.

`group` is what torch calls, `ledger_buffer` what a rank writes down, `shared_state` what the others see of it.
Stands on core and scripts. `processes` takes `LedgerGroup`, the shared state and the deadlock watcher; `launch` the
merged trace.
"""
