"""Checks of 7.4: each rank gets a shard of the mean gradients, in buckets that travel while backward goes on."""
