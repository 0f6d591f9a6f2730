"""Values and wiring: all that a backend may see. Standard library only; no framework, no driver, no lock."""
