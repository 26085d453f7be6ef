"""What `arr-coc bench` measures."""
