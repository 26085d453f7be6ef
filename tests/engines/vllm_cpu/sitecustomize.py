"""Makes the CPU build of vLLM importable. `make test-vllm` puts this folder on PYTHONPATH, for vLLM's own processes, too.

The wheel of torchvision that comes with it is built for CUDA and registers no operators. Its import declares fake kernels of
two of them, which must exist.
"""

import torch

_library = torch.library.Library("torchvision", "DEF")
_library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
