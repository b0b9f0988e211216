"""The name that `--cluster` gives -> the program with that machine as the one it is planned for.

A name is that of a cluster of the file, of one in a library (`std.clusters.h100_pod`), or a file,
whose first cluster (or device) counts. Mistakes are reported as those of imports are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardlang.check.context import Context, Loader
from shardlang.check.files.imports import LIBRARIES, Library
from shardlang.check.program import CheckedProgram, Machine
from shardlang.check.train.hardware import machines
from shardlang.diagnostics.diagnostic import Sink
from shardlang.hints.nearest import offer
from shardlang.sources.files import Unreadable
from shardlang.syntax.parse import parse

CLUSTERS = "std.clusters"


def with_cluster(program: CheckedProgram, name: str, sink: Sink, load: Loader) -> CheckedProgram | None:
    """The program with the machine of that name alone; None after a report."""
    if name.endswith(".shard"):
        found = _declared(name, sink, load)
        machine = None if found is None else next(iter(found.values()), None)
        if found == {}:
            help = "`shardc calibrate -o machine.shard` writes the `device` and `cluster` of this machine"
            sink.report("SH202", f"`{name}` describes no hardware", None, help=help)
    elif "." in name:
        library, _, inner = name.rpartition(".")
        machine = _chosen(inner, library, _declared(library, sink, load), sink, load)
    else:
        machine = _chosen(name, program.source.name, program.hardware, sink, load)
    return None if machine is None else replace(program, hardware={name: machine})


def _declared(name: str, sink: Sink, load: Loader) -> Mapping[str, Machine] | None:
    """The machines of another file, clusters first; None after a report."""
    is_file = name.endswith(".shard")
    source = load("-", name, is_file)
    if isinstance(source, Unreadable):
        what = "file" if is_file else "library"
        known = "write the path of a file" if is_file else "there is `std.clusters`, as in `std.clusters.h100_pod`"
        sink.report("SH203", f"{what} `{name}` {source}", None, help=source.help or offer(name, LIBRARIES, known))
        return None
    context, before = Context(sink), len(sink.found)
    library = Library(context, {})
    found = machines(library.open(parse(source, sink)), context)
    ordered = sorted(found.items(), key=lambda item: item[1].cluster is None)
    return dict(ordered) if len(sink.found) == before else None


def _chosen(
    name: str, home: str, found: Mapping[str, Machine] | None, sink: Sink, load: Loader
) -> Machine | None:  # fmt: skip
    """The cluster of a name; None after a report, which offers that of the library first."""
    if found is None or (name in found and found[name].cluster is not None):
        return None if found is None else found[name]
    clusters = [n for n, machine in found.items() if machine.cluster is not None]
    listed = f"it has {', '.join(f'`{n}`' for n in clusters)}" if clusters else "`std.clusters.h100_pod` is one"
    known = (_declared(CLUSTERS, Sink(), load) or {}).get(name)
    is_there = known is not None and known.cluster is not None
    help = f"write `{CLUSTERS}.{name}`" if is_there else offer(name, clusters, listed)
    sink.report("SH202", f"`{home}` has no cluster `{name}`", None, help=help)
    return None
