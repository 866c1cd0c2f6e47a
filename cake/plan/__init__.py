"""Problem + DeviceSpec -> Plan. Pure: no CUDA, runs anywhere."""

from .dense import ProjectionKey, ProjectionPlan, plan_projection, projection_problem
from .device import CPU, DeviceSpec, UnsupportedDevice
from .partition import Partition
from .planner import Plan, ProgramKey, plan, router_problem
from .raster import Raster
from .routes import Routes

__all__ = [
    "CPU",
    "DeviceSpec",
    "Partition",
    "Plan",
    "ProgramKey",
    "ProjectionKey",
    "ProjectionPlan",
    "Raster",
    "Routes",
    "UnsupportedDevice",
    "plan",
    "plan_projection",
    "projection_problem",
    "router_problem",
]
