"""Scripts for torchrun, four hosts in network namespaces, a measured link."""
