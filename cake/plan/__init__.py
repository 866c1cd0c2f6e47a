"""Problem + DeviceSpec -> Plan. Pure: no CUDA, runs anywhere."""

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
    "Raster",
    "Routes",
    "UnsupportedDevice",
    "plan",
    "router_problem",
]
