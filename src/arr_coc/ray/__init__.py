"""Ray: many questions as a stage of Ray Data, long runs on its workers, and the endpoint as a deployment of Ray Serve.

Needs the extra: pip install "arr-coc[ray]".
"""

from arr_coc.ray.ask import Ask
from arr_coc.ray.deployment import deployment
from arr_coc.ray.workers import Workers

__all__ = ["Ask", "Workers", "deployment"]
