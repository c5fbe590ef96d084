"""Products with K whose entries exist only inside a kernel on the GPU, generated from the kernel's expression."""

from pathgp.operators.fused.backend import Fused as Fused
from pathgp.operators.fused.backend import fallback_reason as fallback_reason
from pathgp.operators.fused.backend import fused_cross as fused_cross
from pathgp.operators.fused.backend import fused_cross_gradient as fused_cross_gradient
from pathgp.operators.fused.own_points import OwnPoints as OwnPoints
