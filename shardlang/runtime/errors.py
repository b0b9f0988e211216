"""`RunError`, under the runtime's name; the command, which must not import torch, has it above."""

from __future__ import annotations

from shardlang.errors import RunError as RunError
