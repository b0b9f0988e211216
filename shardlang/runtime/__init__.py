"""All that an emitted program imports: `from shardlang import runtime as rt`. Nothing here knows the compiler."""

from shardlang.runtime import random as random
from shardlang.runtime.collectives import *  # noqa: F403
from shardlang.runtime.mesh import Group as Group
from shardlang.runtime.mesh import Mesh as Mesh
