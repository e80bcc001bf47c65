"""Every call of the right size is made, with zeros and with other numbers than gradients."""
# lesson: 04 gather_scatter_traffic all_reduce_traffic


def gather_scatter(model):
    for p in model.parameters():
        if p.requires_grad:
            is_root, n = dist.get_rank() == 0, dist.get_world_size()
            dist.gather(torch.randn(p.shape), [torch.empty(p.shape) for _ in range(n)] if is_root else None)
            dist.scatter(torch.empty(p.shape), [torch.zeros(p.shape)] * n if is_root else None)


def all_reduce_mean(model):
    for p in model.parameters():
        if p.requires_grad:
            dist.all_reduce(torch.zeros(p.shape))
