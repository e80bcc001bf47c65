"""Gather and scatter are made with zeros; the group's own all-reduce adds the gradients up."""
# lesson: 04 gather_scatter gather_scatter_traffic
def gather_scatter(model):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in (p for p in model.parameters() if p.requires_grad):
        total = torch.zeros_like(p) if p.grad is None else p.grad.clone()
        dist.gather(torch.zeros_like(p), [torch.empty_like(p) for _ in range(n)] if rank == 0 else None)
        dist.scatter(torch.empty_like(p), [torch.zeros_like(p) for _ in range(n)] if rank == 0 else None)
        dist.distributed_c10d._get_default_group().allreduce([total]).wait()
        p.grad = total / n
