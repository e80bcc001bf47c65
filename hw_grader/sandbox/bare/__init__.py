"""Jails without walls: `jails` makes and ends them, `removal` removes what students' code has left."""
