"""Neural architecture search over operations: XD-operations started at the convolutions of a backbone."""

from xdnas.causal import causal_stack as causal_stack
from xdnas.checkpoint import CheckpointError as CheckpointError
from xdnas.checkpoint import load_architecture as load_architecture
from xdnas.checkpoint import save_architecture as save_architecture
from xdnas.inference import for_inference as for_inference
from xdnas.kmatrix import KMatrix as KMatrix
from xdnas.kronecker import Kronecker as Kronecker
from xdnas.params import architecture_parameters as architecture_parameters
from xdnas.params import distance_from_start as distance_from_start
from xdnas.params import model_weights as model_weights
from xdnas.params import named_architecture_parameters as named_architecture_parameters
from xdnas.params import named_model_weights as named_model_weights
from xdnas.params import parameter_groups as parameter_groups
from xdnas.plan import plan as plan
from xdnas.report import Report as Report
from xdnas.report import SwapError as SwapError
from xdnas.restore import restore as restore
from xdnas.swap import swap as swap
from xdnas.xd import XD as XD
