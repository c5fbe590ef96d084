"""Products of stationary kernels in up to three dimensions in n log n."""

from pathgp.operators.field.backend import LEAST_ROWS as LEAST_ROWS
from pathgp.operators.field.backend import Field as Field
from pathgp.operators.field.backend import Geometry as Geometry
from pathgp.operators.field.backend import predict_field as predict_field
