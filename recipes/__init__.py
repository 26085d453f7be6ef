"""How the shipped weights were made. In the repository, not in the wheel."""
