"""cake: GEMM kernels for training routers, with FP32 accuracy out of 16-bit tensor cores, deterministic by
default.
"""

from .router import (
    PreparedRouter,
    clear_caches,
    prepare_router,
    router_backward,
    router_dgrad,
    router_forward,
    router_wgrad,
)

__all__ = [
    "PreparedRouter",
    "clear_caches",
    "prepare_router",
    "router_backward",
    "router_dgrad",
    "router_forward",
    "router_wgrad",
]
