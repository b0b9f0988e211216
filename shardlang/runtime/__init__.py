"""All that an emitted program imports: `from shardlang import runtime as rt`. No compiler here."""

import os

# Read by OpenMP as torch loads it: idle threads sleep. Spinning, they take the processor from
# whatever else runs on it; a step of a small model on two threads of a busy machine took 170 to 350
# ms so, and 30 to 40 ms with this.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from shardlang.runtime import packages, random
from shardlang.runtime.comm.collectives import *
from shardlang.runtime.comm.host_copies import to_device, to_host
from shardlang.runtime.comm.mesh import Group, Time
from shardlang.runtime.comm.mesh import RankMesh as Mesh
from shardlang.runtime.comm.row_exchange import exchanged_embedding
from shardlang.runtime.compiled import block
from shardlang.runtime.functions.attention import *
from shardlang.runtime.functions.context import *
from shardlang.runtime.functions.declared import *
from shardlang.runtime.functions.images import *
from shardlang.runtime.functions.indices import *
from shardlang.runtime.functions.lookups import *
from shardlang.runtime.functions.losses import *
from shardlang.runtime.functions.masks import *
from shardlang.runtime.functions.normalisations import *
from shardlang.runtime.functions.products import *
from shardlang.runtime.functions.rotary import *
from shardlang.runtime.functions.statistics import *
from shardlang.runtime.launch.entry import main, main_by_size
from shardlang.runtime.logs import timed
from shardlang.runtime.program import BatchSource as Source
from shardlang.runtime.program import (
    Checkpoint,
    Evaluation,
    Linear,
    Optimizer,
    OwnSchedule,
    Parameter,
    Safetensors,
    State,
    WarmupCosine,
    each,
)
from shardlang.runtime.program import RunProgram as Program
from shardlang.runtime.program import SourceField as Field
from shardlang.runtime.speed import Work
from shardlang.runtime.stages import Order, Received, Schedule, Stage
from shardlang.runtime.state.saved_on_host import saved_on_host
from shardlang.runtime.state.sparse import sparse_embedding
from shardlang.runtime.step.recompute import keeping, recompute
from shardlang.runtime.tree import path
from shardlang.runtime.weight_names import Named, Names
from shardlang.runtime.words import Text, Words
