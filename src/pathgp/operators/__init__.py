"""The system matrix as an object: products, rows, columns, blocks, and a differentiable bilinear form."""

from pathgp.compute.process_groups import Devices as Devices
from pathgp.compute.process_groups import Group as Group
from pathgp.compute.process_groups import RankLost as RankLost
from pathgp.compute.process_groups import Ranks as Ranks
from pathgp.operators.base import Operator as Operator
from pathgp.operators.base import Preconditioner as Preconditioner
from pathgp.operators.cross import cross_product as cross_product
from pathgp.operators.field_operator import FieldOperator as FieldOperator
from pathgp.operators.grid_blocks import GridBlocks as GridBlocks
from pathgp.operators.grid_inverse import GridInverse as GridInverse
from pathgp.operators.kernel import KernelOperator as KernelOperator
from pathgp.operators.latent_kronecker import LatentKroneckerOperator as LatentKroneckerOperator
from pathgp.operators.own_points import own_product as own_product
from pathgp.operators.toeplitz_operator import ToeplitzOperator as ToeplitzOperator
