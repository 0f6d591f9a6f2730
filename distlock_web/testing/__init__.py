"""What the project tests itself with, shipped: the contract suite, servers for a test session, a pytest plugin."""
