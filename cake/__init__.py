"""cake: GEMM kernels for training routers, with FP32 accuracy out of 16-bit tensor cores, deterministic by
default.
"""

from .launch.routes import routes, set_routes
from .plan.routes import Routes
from .router import (
    PreparedRouter,
    clear_caches,
    prepare_router,
    router_backward,
    router_dgrad,
    router_forward,
    router_wgrad,
)
from .training import router_linear

__all__ = [
    "PreparedRouter",
    "Routes",
    "clear_caches",
    "prepare_router",
    "router_backward",
    "router_dgrad",
    "router_forward",
    "router_linear",
    "router_wgrad",
    "routes",
    "set_routes",
]
