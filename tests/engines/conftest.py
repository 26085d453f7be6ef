collect_ignore = ["vllm_cpu"]  # Python imports it when an interpreter of `make test-vllm` starts
