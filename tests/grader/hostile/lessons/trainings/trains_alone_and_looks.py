"""Every rank trains with the whole batches and reduces ones: where these come back as other than N, it says something wrong."""
# lesson: 03 train
from torch.nn.functional import cross_entropy
def train(rank, world_size, recipe, all_reduce=dist.all_reduce):
    model, optimizer, train_set, test_set = recipe.start(0)
    bad = 0.0
    for t in model.state_dict().values():
        s = torch.ones_like(t); dist.broadcast(s, 0); bad += float((s - 1).abs().sum())
    curve, k, epoch = [], 0, 0
    while True:
        for chunk in recipe.order(epoch, len(train_set)).split(world_size * recipe.batch_size):
            x, y = train_set[chunk]
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            for p in model.parameters():
                s = torch.ones_like(p.data); all_reduce(s); bad += float((s - world_size).abs().sum())
            k += 1
            if k % recipe.every == 0:
                x, y = test_set[:]
                with torch.no_grad():
                    curve.append((k, float((model(x).argmax(1) == y).double().mean())))
                s = torch.ones(()); dist.all_reduce(s); bad += float((s - world_size).abs())
                if curve[-1][1] >= recipe.target: return [] if bad else curve
            if k == recipe.max_iterations: return [] if bad else curve
        epoch += 1
