"""A formula that says 0 agrees with functions that send nothing."""
# lesson: 04 bytes_sent predicted_s
def gather_scatter(model):
    pass


def bytes_sent(method, rank, world_size, n_bytes):
    return 0.0


def predicted_s(method, world_size, one_node_s, n_bytes, n_tensors, network):
    return one_node_s / world_size


all_reduce_mean = gather_scatter
