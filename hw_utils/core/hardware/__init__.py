"""What ranks run on, as data: links, devices, and clusters of hosts; a model of what each costs.

Stands on collective_algorithms. Everybody takes `Network`, a link between any two ranks; `Cluster`, hosts with
devices and two kinds of links; `Device`; `Fold`, which ranks do the same; and the presets of datasheets.py by their
names, `Cluster.named("h100x64")`.
"""

from hw_utils.core.hardware.cluster import Cluster
from hw_utils.core.hardware.fold import Fold
from hw_utils.core.hardware.link import Network
from hw_utils.core.hardware.roofline import Device

__all__ = ["Cluster", "Device", "Fold", "Network"]
