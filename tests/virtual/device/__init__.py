"""Ranks with a virtual accelerator: streams and memory, what programs call cuda, what a change does to their time."""
