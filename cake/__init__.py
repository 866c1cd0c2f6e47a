"""cake: GEMM kernels for training, deterministic by default: routers with FP32 accuracy out of 16-bit tensor
cores, and BF16 projections.
"""

from .launch.routes import routes, set_routes
from .plan.routes import Routes
from .projection import (
    PreparedProjection,
    dense_projection_gemm,
    prepare_projection,
    projection_dgrad,
    projection_forward,
    projection_wgrad,
)
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
    "PreparedProjection",
    "PreparedRouter",
    "Routes",
    "clear_caches",
    "dense_projection_gemm",
    "prepare_projection",
    "prepare_router",
    "projection_dgrad",
    "projection_forward",
    "projection_wgrad",
    "router_backward",
    "router_dgrad",
    "router_forward",
    "router_linear",
    "router_wgrad",
    "routes",
    "set_routes",
]
