"""Process groups of virtual ranks: what `dist.all_reduce` and the rest call, and what a rank knows of its groups.

`group` is a rank's view of one, `signatures` the collectives by all the names that torch has for them, `new_group`
where members meet to make one, `group_members` who they are, `world` what torch.distributed keeps about groups, a rank.
Stands on core, scripts, ranks, stores and traffic.
"""
