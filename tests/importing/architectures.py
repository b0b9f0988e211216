"""`python -m tests.importing.architectures` imports a tiny model of each architecture of `transformers`, and prints
which come in whole, and which only with operators of their own (`--opaque`). Outcomes are kept in a file (`--kept`),
so that a run can go on."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import multiprocessing
import os
import re
import resource
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from shardlang.errors import RunError
from shardlang.importing.imported import Imported, Wanted, import_module

LIMIT = 120


def outcome(name: str) -> dict[str, Any]:
    """What importing one architecture gives: whole, opaque, refused with its reasons, or not built."""
    from tests.importing.tiny import built

    try:
        built(name)
    except Exception as error:
        return {"outcome": "not built", "reasons": [f"{type(error).__name__}: {error}"[:300]]}
    wanted = Wanted(f"tiny:{name}", {}, frozenset(("SH604", "SH605", "SH608")))
    try:
        found = import_module(lambda: built(name), wanted)
    except RunError as error:
        refused = {"outcome": "refused", "code": error.code, "reasons": error.message.splitlines()}
        return _opaque(name, wanted, refused) if error.code == "SH601" else refused
    except Exception as error:
        return {"outcome": "fault", "reasons": [f"{type(error).__name__}: {error}"[:2000]]}
    return {"outcome": "whole", **_told(found)}


def _opaque(name: str, wanted: Wanted, refused: dict[str, Any]) -> dict[str, Any]:
    """The outcome with operators of its own for what the language has no word for: `opaque`, with
    the reasons why it is not whole, or refused still, with those of `--opaque` beside them."""
    from tests.importing.tiny import built

    try:
        found = import_module(lambda: built(name), dataclasses.replace(wanted, opaque="model_ops"))
    except RunError as error:
        return {**refused, "opaque": error.message.splitlines()}
    except Exception as error:
        return {**refused, "opaque": [f"{type(error).__name__}: {error}"[:2000]]}
    return {"outcome": "opaque", "reasons": refused["reasons"], "operators": found.report["opaque"], **_told(found)}


def _told(found: Imported) -> dict[str, Any]:
    return {"lines": found.text.count("\n"), "unnamed": found.report["unnamed dims"],
            "accepted": list(found.report["accepted"]), "text": found.text}  # fmt: skip


def _child(name: str, to: Connection, seconds: int) -> None:
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    torch.set_num_threads(1)  # a forked process has no other threads than that which forked, and would wait for them
    to.send(outcome(name))


def limited(name: str, seconds: int) -> dict[str, Any]:
    """The outcome in a process of its own, which has `seconds` of processor time."""
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(name, there, seconds))
    start = _spent()
    process.start()
    there.close()
    found: dict[str, Any] = {}
    with contextlib.suppress(EOFError):
        found = here.recv()
    process.join()
    ended = process.exitcode or 0
    if not found:
        how = f"{signal.Signals(-ended).name} (signal {-ended})" if ended < 0 else f"exit code {ended}"
        found = {"outcome": "fault", "reasons": [f"its process ended ({how})"]}
    if ended == -signal.SIGXCPU:
        found = {"outcome": "too slow", "reasons": [f"over {seconds} s"]}
    return {**found, "seconds": round(_spent() - start, 1)}


def _spent() -> float:
    """The processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _kinds(found: dict[str, Any]) -> set[str]:
    """The reasons of an outcome without what stands only in it: counts, places, numbers."""
    texts = [re.sub(r"^\s*\d+ x |: `[\w.]+`, .*$", "", line) for line in found["reasons"]]
    texts = [text for text in texts if not text.startswith("the language has no word for")]
    return {re.sub(r"\d+", "n", text)[:100] for text in texts}


def table(kept: dict[str, dict[str, Any]]) -> str:
    """The totals, and each reason with how many models have it."""
    counts = collections.Counter(each["outcome"] for each in kept.values())
    built = sum(count for outcome, count in counts.items() if outcome != "not built")
    reasons: collections.Counter[str] = collections.Counter()
    for each in kept.values():
        if each["outcome"] not in ("whole", "not built"):
            reasons.update(_kinds(each))  # of an opaque one, why it is not whole
    lines = [f"{count:4} {reason}" for reason, count in reasons.most_common()]
    share = 100 * counts["whole"] / max(built, 1)
    totals = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    return "\n".join([*lines, f"{len(kept)} architectures: {totals}; {share:.0f} % of {built} built ones are whole"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept", type=Path, default=Path("architectures.json"), help="where outcomes are kept")
    parser.add_argument("--only", nargs="*", help="these alone")
    parser.add_argument("--again", nargs="*", default=[], help="again all of these outcomes, as `refused`")
    parser.add_argument("--seconds", type=int, default=LIMIT, help="the most processor time that one may take")
    parser.add_argument("--minutes", type=float, default=1e9, help="the most that this run may take")
    given = parser.parse_args()
    os.nice(10)
    # What an import needs of torch is loaded once, for all processes that are forked from this one.
    outcome("bert")
    from tests.importing.tiny import names

    kept: dict[str, dict[str, Any]] = json.loads(given.kept.read_text()) if given.kept.exists() else {}
    start = time.monotonic()
    for name in names():
        todo = name not in kept or kept[name]["outcome"] in given.again
        if (name in given.only if given.only else todo) and time.monotonic() - start < 60 * given.minutes:
            kept[name] = limited(name, given.seconds)
            given.kept.write_text(json.dumps(kept))
            print(name, kept[name]["outcome"], *kept[name].get("reasons", []), sep="\n    ", flush=True)
    print(table(kept))


if __name__ == "__main__":
    main()
