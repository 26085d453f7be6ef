"""How the shipped weights were made. Part of the repository, not of the wheel."""
