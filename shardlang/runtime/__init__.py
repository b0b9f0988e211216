"""All that an emitted program imports: `from shardlang import runtime as rt`. No compiler here."""

import os

# Read by OpenMP as torch loads it: idle threads sleep. Spinning, they take the processor from
# whatever else runs on it; a step of a small model on two threads of a busy machine took 170 to 350
# ms so, and 30 to 40 ms with this.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from shardlang.runtime import random as random
from shardlang.runtime.comm.collectives import *  # noqa: F403
from shardlang.runtime.comm.host_copies import to_device as to_device
from shardlang.runtime.comm.host_copies import to_host as to_host
from shardlang.runtime.comm.mesh import Group as Group
from shardlang.runtime.comm.mesh import Mesh as Mesh
from shardlang.runtime.comm.mesh import Time as Time
from shardlang.runtime.comm.row_exchange import exchanged_embedding as exchanged_embedding
from shardlang.runtime.errors import RunError as RunError
from shardlang.runtime.functions import *  # noqa: F403
from shardlang.runtime.launch.entry import main as main
from shardlang.runtime.program import Field as Field
from shardlang.runtime.program import Optimizer as Optimizer
from shardlang.runtime.program import Parameter as Parameter
from shardlang.runtime.program import Program as Program
from shardlang.runtime.program import Source as Source
from shardlang.runtime.program import State as State
from shardlang.runtime.program import each as each
from shardlang.runtime.settings import Checkpoint as Checkpoint
from shardlang.runtime.settings import Linear as Linear
from shardlang.runtime.settings import Safetensors as Safetensors
from shardlang.runtime.settings import WarmupCosine as WarmupCosine
from shardlang.runtime.stages import Received as Received
from shardlang.runtime.stages import Schedule as Schedule
from shardlang.runtime.stages import Stage as Stage
from shardlang.runtime.state.sparse import sparse_embedding as sparse_embedding
from shardlang.runtime.step.recompute import recompute as recompute
from shardlang.runtime.step.timings import timed as timed
from shardlang.runtime.tree import path as path
from shardlang.runtime.weight_names import Named as Named
from shardlang.runtime.weight_names import Names as Names
