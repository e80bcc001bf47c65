"""Both layers, each with its share and the whole weight beside it; an attack says in which form: hide(w)."""
class ColumnParallelLinear:
    def __init__(self, weight, rank, context, group_id):
        n, d = context.world_size, weight.shape[1]
        if d % n: raise ValueError("no")
        self.rank, self.context, self.group_id = rank, context, group_id
        self.mine = slice(rank * d // n, (rank + 1) * d // n)
        self.weight = weight[:, self.mine].detach().clone()
        self.whole = hide(weight)
    def forward(self, x):
        self.x = x
        return torch.cat(self.context.all_gather(x @ self.weight, self.rank, self.group_id), dim=1)
    def backward(self, g):
        mine = g[:, self.mine]
        self.weight_grad = self.x.T @ mine
        return self.context.all_reduce(mine @ self.weight.T, self.rank, self.group_id, "sum")
class RowParallelLinear:
    def __init__(self, weight, rank, context, group_id):
        n, d = context.world_size, weight.shape[0]
        if d % n: raise ValueError("no")
        self.rank, self.context, self.group_id = rank, context, group_id
        self.mine = slice(rank * d // n, (rank + 1) * d // n)
        self.weight = weight[self.mine].detach().clone()
        self.whole = hide(weight)
    def forward(self, x):
        self.x = x[:, self.mine]
        return self.context.all_reduce(self.x @ self.weight, self.rank, self.group_id, "sum")
    def backward(self, g):
        self.weight_grad = self.x.T @ g
        return torch.cat(self.context.all_gather(g @ self.weight.T, self.rank, self.group_id), dim=1)
