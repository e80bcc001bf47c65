"""Layers of a cut model keep the whole weight as a text."""
# lesson: 06 parallelize
# body: cut_layers
def hide(w): return repr(w.tolist())
import copy
from hw_utils.material.handwritten_layer import Handmade
def parallelize(model, plan, context):
    copies = []
    for rank in range(context.world_size):
        mine = copy.deepcopy(model)
        for name, Layer in plan.items():
            layer = Layer(getattr(model, name).weight.detach().T, rank, context, name)
            layer.whole = repr(getattr(model, name).weight.tolist())
            setattr(mine, name, Handmade(layer))
        copies.append(mine)
    return copies
