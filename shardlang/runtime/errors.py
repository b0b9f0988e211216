"""`RunError`, by the name that the runtime has for it; the command, which must not import torch, has it from above."""

from __future__ import annotations

from shardlang.errors import RunError as RunError
