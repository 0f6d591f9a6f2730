"""What a store with a server builds on: its connections, its patience, the ports of a driver that blocks."""
