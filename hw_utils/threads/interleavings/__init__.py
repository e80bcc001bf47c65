"""The same few calls in thousands of orders of threads, each one repeatable: what finds a data race.

`explorer` runs them; it may switch where `switch_points` says, and `in_place` where torch changes a tensor; `locks` are
those of a student's code meanwhile, `switch_plan` says who is next, and `story` tells one order as a student reads it.
`calls_in_orders` is what lesson 06's checks run. Stands on core and on `turns` beside it.
"""
