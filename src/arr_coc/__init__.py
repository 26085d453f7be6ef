"""ARR-COC: keep the visual tokens that matter for the question."""

__version__ = "0.1.0"
