from shardlang.api.calls import check as check
from shardlang.api.calls import compile as compile
from shardlang.api.calls import explain as explain
from shardlang.api.calls import format as format
from shardlang.api.calls import plan as plan
from shardlang.api.calls import read as read
from shardlang.api.calls import source as source
from shardlang.api.rows import Row as Row
from shardlang.api.values import Compiled as Compiled
from shardlang.api.values import Plan as Plan
from shardlang.api.values import Program as Program
from shardlang.api.values import ProgramError as ProgramError
from shardlang.api.values import RankView as RankView
from shardlang.api.values import Report as Report

__version__: str
