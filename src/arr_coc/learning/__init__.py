"""Learning to choose: what trains a selector for a wrapped model, and, where wanted, the model beside it."""
