"""Load and faults, as tests that take long: `make soak`. Each writes its figures to out/soak/."""
