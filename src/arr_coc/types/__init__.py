"""Data types that every layer shares: images, grids, budgets, allocations, answers."""
