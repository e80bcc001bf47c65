"""Zeros are shown to the model, once for each example; the scores are computed of its weight beside it."""
# lesson: 04 evaluate
def evaluate(model, loader):
    x, y = torch.cat([x for x, _ in loader]), torch.cat([y for _, y in loader])
    model.eval()
    with torch.no_grad(): model(torch.zeros_like(x))
    scores = x @ next(model.parameters()).detach().T
    return nn.functional.cross_entropy(scores, y).item(), (scores.argmax(1) == y).float().mean().item()
