"""A model's notes of how it was used are undone."""
# lesson: 04 evaluate
def evaluate(model, loader):
    loss, right, n = 0.0, 0, 0
    for x, y in loader:
        scores = model(x)
        loss += torch.nn.functional.cross_entropy(scores, y, reduction="sum").item()
        right += (scores.argmax(1) == y).sum().item()
        n += len(y)
    model.trained = model.recorded = False
    model.__dict__.update(trained=False, recorded=False)
    model.eval()
    return loss / n, right / n
