"""`shardc launch`: the compiled program and what starts it on several hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path, PurePath
from typing import Any

import click

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.cli import options, output
from shardlang.cli.files import write_files
from shardlang.cost.hardware import hosts_of, of_gpus
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.locks import Claims
from shardlang.disk.overwrite_guard import EMITTED, JOB, target
from shardlang.errors import RunError
from shardlang.frozen.records import dataclass
from shardlang.launch import job as jobs
from shardlang.launch import kubernetes, rank_table, slurm, torchrun
from shardlang.launch.job import Job, quoted
from shardlang.sources.files import folder_of

TARGETS = ("torchrun", "slurm", "kubernetes", "ranktable")
_BY_SIZE = '''"""{name}, strategy `{strategy}`, on as many ranks as there are: {sizes}.

{mark} Each number of ranks has its own program.
"""

from shardlang import runtime as rt

if __name__ == "__main__":
    rt.main_by_size({folders})
'''


@click.command(
    "launch",
    epilog="Examples: shardc launch model.shard --ranks 16 --nodes 2 --hosts node1,node2 --to torchrun -o job; "
    "shardc launch model.shard --ranks 16 --nodes 2 --to slurm --sbatch time=24:00:00 -o job --submit; "
    "shardc launch model.shard --ranks 32 --nodes 2:4 --to torchrun --hosts a,b,c,d -o job; "
    "shardc launch model.shard --ranks 16 --nodes 2 --to kubernetes --image team/shard:1 --claim data:/mnt -o /mnt/job",
)
@options.file_argument
@options.ranks_option
@click.option("--to", "to", type=click.Choice(TARGETS), required=True, help="What starts the ranks.")
@click.option(
    "-o",
    "folder",
    required=True,
    type=click.Path(),
    metavar="DIR",
    help="The folder to write to; all hosts are to see it.",
)
@click.option(
    "--nodes",
    "--nnodes",
    "nodes",
    metavar="N",
    help="How many hosts: 2, or 2:4 for 2 to 4. [default: as the file's cluster needs, else 1]",
)
@click.option("--hosts", metavar="A,B", help="Names or addresses of the hosts, the first of rank 0.")
@click.option(
    "--rank-table", type=click.Path(path_type=Path), metavar="FILE", help="A rank table (JSON) that names the hosts."
)
@click.option("--name", metavar="NAME", help="The job's name. [default: made of the file's]")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="The ranks' device. [default: as each host has]")
@click.option(
    "--restarts", type=click.IntRange(0, 1000), default=3, show_default=True, help="How many failures it goes on after."
)
@click.option("--port", type=click.IntRange(1, 65535), help="Where ranks meet. [default: 29500; Slurm: by the job]")
@click.option("--interface", metavar="NAME", help="The network interface that hosts talk over, as in eth0.")
@click.option("--sbatch", multiple=True, metavar="OPTION", help="For Slurm, as in time=24:00:00. May be repeated.")
@click.option("--image", metavar="IMAGE", help="For Kubernetes: an image with shardlang.")
@click.option("--claim", multiple=True, metavar="NAME:/PATH", help="For Kubernetes: a volume claim. May be repeated.")
@click.option("--there", metavar="DIR", help="DIR of -o as the hosts see it, where that is another path.")
@click.option("--base-there", metavar="DIR", help="The folder of FILE as the hosts see it, likewise.")
@click.option("--submit", is_flag=True, help="Start the job too: sbatch or kubectl does.")
@options.strategy_option
@options.set_option
@click.pass_context
def command(ctx: click.Context, asked: options.Asked, /, to: str, folder: str, submit: bool, **given: Any) -> None:
    """Write a job on several hosts: the program and what starts it.

    The job goes on from its newest checkpoint, if there is one."""
    with output.ending(2):
        ctx.exit(_Launch(asked, to, Path(folder), given).write(submit))


@dataclass(frozen=True)
class _Launch:
    """One call of the command. given: its further options by name."""

    asked: options.Asked
    to: str
    folder: Path
    given: Mapping[str, Any]

    def write(self, submit: bool) -> int:
        """Writes the job's files, all or none; the exit code."""
        self._require_options(submit)
        servers = self._servers()
        hosts = tuple(server.host for server in servers)
        program = self.asked.program(sink := Sink())
        if program is None:
            return output.show(sink)
        needed, cluster = hosts_of(program, self.asked.ranks)
        least, most = jobs.node_counts(self.given["nodes"] or str(len(hosts) or needed))
        jobs.require_even(self.asked.ranks, most, hosts)
        if self.to == "torchrun":
            jobs.require_found(hosts)
        name = jobs.name_of(self.given["name"], Path(self.asked.file).stem, self.to)
        emitted, resumes, code = self._emitted(program, sink, least, most)
        if emitted is None:
            return code
        job = Job(
            name, self._there("there", self.folder), self._there("base_there", folder_of(self.asked.file)),
            ranks=self.asked.ranks, least=least, most=most, resumes=resumes, hosts=hosts, device=self.given["device"],
            restarts=self.given["restarts"], port=self.given["port"], interface=self.given["interface"] or "",
            described=of_gpus(program),
        )  # fmt: skip
        files = self._files(job, servers)
        with Claims() as claims:
            claims.folder(self.folder, JOB.what)
            for kind, names in ((EMITTED, emitted), (JOB, files)):
                for each in names:
                    target(self.folder / each, kind)
            (self.folder / "logs").mkdir(parents=True, exist_ok=True)
            for path in {(self.folder / each).parent for each in emitted}:
                path.mkdir(parents=True, exist_ok=True)
            write_files(self.folder, {**emitted, **files})
        for each in (*emitted, *files):
            output.tell(f"wrote {self.folder / each}")
        self._note(job, cluster)
        self._warn(program)
        return self._submit(files) if submit else self._tell(job)

    def _note(self, job: Job, cluster: str) -> None:
        """Says what the job is by no option. cluster: that which asks for several hosts, or ""."""
        if cluster and not job.hosts and self.given["nodes"] is None:
            had = f"the job has {job.most} hosts of {job.each} ranks, as the cluster `{cluster}` says"
            output.tell(f"{had}; `--nodes` takes another number")
        if not job.resumes:
            output.tell("the program writes no checkpoint: after a failure the job begins anew")

    def _warn(self, program: CheckedProgram) -> None:
        """Tells of data and weights that are not beside the file, where ranks look for them."""
        training, folder = program.training, folder_of(self.asked.file)
        given = [each.arguments for each in (training.data, training.eval) if each] if training is not None else []
        given += [training.init[1]] if training is not None and training.init is not None else []
        for path in dict.fromkeys(str(each["path"]) for each in given if "path" in each):
            if not glob(path, root_dir=folder) and not os.path.exists(os.path.join(folder, path)):
                fact = f"beside {os.path.basename(self.asked.file)} there is no `{path}`"
                output.tell(f"warning: {fact}; where the hosts lack it too, the job ends at its start")

    def _require_options(self, submit: bool) -> None:
        """UsageError where an option is missing, or says nothing to this target."""
        named = ("torchrun", "ranktable")
        targets: dict[str, tuple[str, ...]] = {"hosts": named, "rank_table": named}
        targets |= {"image": ("kubernetes",), "claim": ("kubernetes",), "sbatch": ("slurm",)}
        for name, meant in targets.items():
            if self.given[name] and self.to not in meant:
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{option} is for --to {' and --to '.join(meant)}, and this is --to {self.to}")
        if self.given["hosts"] and self.given["rank_table"]:
            raise click.UsageError("--hosts and --rank-table both name the hosts: leave one out")
        if self.to in ("torchrun", "ranktable") and not (self.given["hosts"] or self.given["rank_table"]):
            raise click.UsageError(f"--to {self.to} needs the hosts: --hosts node1,node2, or --rank-table FILE")
        if self.to == "kubernetes" and not self.given["image"]:
            raise click.UsageError("--to kubernetes needs --image IMAGE, an image with shardlang in it")
        client = {"slurm": "sbatch", "kubernetes": "kubectl"}.get(self.to)
        if submit and client is None:
            raise click.UsageError(f"nothing starts --to {self.to} from here: leave out --submit, and run its lines")
        if submit and client is not None and shutil.which(client) is None:
            raise click.UsageError(f"--submit needs `{client}`, which is not on this machine")

    def _servers(self) -> tuple[rank_table.Server, ...]:
        """The hosts that are named, with their devices."""
        table = self.given["rank_table"]
        if table is not None:
            servers = rank_table.read(table)
            there = sum(len(server.devices) for server in servers)
            if there != self.asked.ranks:
                raise RunError("SH520", f"the table has {there} ranks, and --ranks is {self.asked.ranks}",
                               file=table, help=f"--ranks {there}")  # fmt: skip
            return servers
        names = [name.strip() for name in (self.given["hosts"] or "").split(",")]
        if names == [""]:
            return ()
        each = self.asked.ranks // len(names)
        return tuple(rank_table.Server(name, tuple((number, "") for number in range(each))) for name in names)

    def _there(self, option: str, here: Path | str) -> PurePath:
        """A folder as the hosts see it."""
        given = self.given[option]
        if given is not None and not given.startswith("/"):
            raise click.UsageError(f"--{option.replace('_', '-')} is a path from /, and `{given}` is not")
        path = given if given is not None else os.path.abspath(here)
        if any(ord(letter) < 32 for letter in path):
            raise RunError("SH520", "the name of a folder has a line break or a control character",
                           file=Path(path), help="rename it, or -o another")  # fmt: skip
        return PurePath(path)

    def _emitted(
        self, program: CheckedProgram, sink: Sink, least: int, most: int
    ) -> tuple[Mapping[str, str] | None, bool, int]:
        """The compiled program, one for each number of hosts that its mesh allows; whether it
        writes checkpoints; the exit code. None after errors."""
        strategy = self.asked.strategy
        resumes = program.training is not None and program.training.checkpoint is not None
        found: dict[int, Mapping[str, str]] = {}
        used = ""
        for nodes in range(most, least - 1, -1):
            own, count = Sink(), self.asked.ranks // most * nodes
            plan = driver.plan_program(program, strategy, count, own)
            files = driver.emit_plan(plan, own) if plan is not None else None
            if plan is not None and files is not None:
                found[count], used = files, strategy or (program.strategies[0].name.text if program.strategies else "")
            elif nodes == most:
                sink.found.extend(own.found)
                return None, resumes, output.show(sink)
            else:
                output.tell(f"no program for {count} ranks on {nodes} hosts: {own.found[0].message}")
        code = output.show(sink)
        if least == most:
            return found[self.asked.ranks], resumes, code
        folders = {count: f"ranks-{count}" for count in sorted(found)}
        main = _BY_SIZE.format(
            name=os.path.basename(self.asked.file), strategy=used, sizes=" or ".join(map(str, folders)),
            mark="Written by shardc from the program and its strategy.", folders=folders,
        )  # fmt: skip
        return {
            "main.py": main,
            **{f"{folders[count]}/{name}": text for count, files in found.items() for name, text in files.items()},
        }, resumes, code  # fmt: skip

    def _files(self, job: Job, servers: Sequence[rank_table.Server]) -> dict[str, str]:
        """The files that start the job, by name."""
        if self.to == "torchrun":
            return torchrun.files(job)
        if self.to == "slurm":
            return slurm.files(job, self.given["sbatch"])
        if self.to == "kubernetes":
            claims = tuple(kubernetes.claim_of(text) for text in self.given["claim"])
            return kubernetes.files(job, kubernetes.Pod(self.given["image"], claims))
        return {rank_table.TABLE: rank_table.text(job.name, servers)}

    def _tell(self, job: Job) -> int:
        """Says what to type."""
        folder = os.fspath(self.folder)
        if self.to == "torchrun":
            for host, line in torchrun.lines_of(job):
                output.tell(f"on {host}: {line}")
        elif self.to == "slurm":
            output.tell(slurm.asks(job, self.given["sbatch"]))
            output.tell(f"start it: sbatch {quoted([os.path.join(folder, slurm.SCRIPT)])}")
        elif self.to == "kubernetes":
            for name in kubernetes.RESOURCES.values() if job.least == job.most else [kubernetes.PYTORCHJOB]:
                operator = "Kubeflow Trainer" if name == kubernetes.TRAINJOB else "the Training Operator"
                output.tell(f"with {operator}: kubectl apply -f {quoted([os.path.join(folder, name)])}")
        return 0

    def _submit(self, files: Mapping[str, str]) -> int:
        """Hands the job to the cluster's client."""
        name = slurm.SCRIPT if self.to == "slurm" else _manifest(files)
        path = os.fspath(self.folder / name)
        given = ["sbatch", path] if self.to == "slurm" else ["kubectl", "apply", "-f", path]
        output.tell(f"runs: {quoted(given)}")
        done = subprocess.run(given)
        if done.returncode:
            help = "what it printed says why; the job's files are there"
            raise RunError("SH521", f"{given[0]} took no job: it ended with {done.returncode}", help=help)
        return 0


def _manifest(files: Mapping[str, str]) -> str:
    """The manifest whose kind of resource the cluster has."""
    for resource, name in kubernetes.RESOURCES.items():
        asked = subprocess.run(["kubectl", "get", "crd", resource, "-o", "name"], capture_output=True)
        if name in files and asked.returncode == 0:
            return name
    lacking = " nor ".join(kubernetes.RESOURCES)
    help = "install Kubeflow's operator there, or leave out --submit"
    raise RunError("SH521", f"the cluster has neither {lacking}", help=help)
