"""The state store in ZooKeeper."""
