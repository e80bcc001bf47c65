"""The plain model for every rank, with calls for show."""
# lesson: 06 parallelize
import copy
def parallelize(model, plan, context):
    return [copy.deepcopy(model) for _ in range(context.world_size)]
class ColumnParallelLinear: pass
class RowParallelLinear: pass
