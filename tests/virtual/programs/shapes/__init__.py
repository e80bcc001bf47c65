"""Runs with shapes only: equal to those with values, and what they say when they are asked for one."""
