"""What messages and collectives of virtual ranks do: whose message comes, what overlaps, what is said of wrong ones."""
