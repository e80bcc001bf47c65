"""The ledger and its sums; what may cross between processes as plain data."""
