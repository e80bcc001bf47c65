"""1F1B; what has come is what `received` makes of it."""


def one_f_one_b(stage, batches, rank, world_size):
    m, rows, kept, sent = len(batches), sum(map(len, batches)), [], []
    is_last = rank == world_size - 1

    def get(k, peer):
        x = torch.empty_like(batches[k])
        dist.recv(x, peer)
        return received(x, peer, rank, kept)

    def put(tensor, peer):
        while sent:
            sent.pop().wait()
        sent.append(dist.isend(tensor, peer))

    def forward(k):
        y = stage.forward(k, get(k, rank - 1) if rank else batches[k])
        if not is_last:
            put(y, rank + 1)
        return 0.0 if not is_last else y.item() * len(batches[k]) / rows

    def backward(k):
        gradient = stage.backward(k, len(batches[k]) / rows if is_last else get(k, rank + 1))
        if rank:
            put(gradient, rank - 1)

    warm_up = min(m, world_size - rank - 1)
    loss = sum(forward(k) for k in range(warm_up))
    for k in range(m):
        if warm_up + k < m:
            loss += forward(warm_up + k)
        backward(k)
    while sent:
        sent.pop().wait()
    return loss
