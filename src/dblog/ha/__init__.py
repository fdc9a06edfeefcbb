"""High availability: one of several instances of a pipeline is the leader, by a lease in the state store."""
