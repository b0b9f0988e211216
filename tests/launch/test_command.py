"""`shardc launch`: what it writes and says, what it refuses before it writes anything, and that what it writes runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardlang.cli.main import shardc
from shardlang.disk.overwrite_guard import LOG_MARK
from tests import warm
from tests.launch.programs import NET, ROOT

TORCHRUN = ("--ranks", "4", "--nodes", "2", "--to", "torchrun", "--hosts", "localhost,127.0.0.1", "-o", "job")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "My Net.shard").write_text(NET)
    return tmp_path


def launch(*arguments: str) -> Result:
    return CliRunner().invoke(shardc, ["launch", "My Net.shard", *arguments])


def test_what_each_launcher_gets(here: Path) -> None:
    said = launch(*TORCHRUN, "--interface", "eth0")
    assert said.exit_code == 0, said.output
    assert f"on 127.0.0.1: bash {here}/job/start.sh 1\n" in said.output
    start = (here / "job" / "start.sh").read_text()
    assert "export GLOO_SOCKET_IFNAME=eth0" in start and "--rdzv-id my-net" in start
    assert "--nnodes 2 --nproc-per-node 2 --max-restarts 3" in start and " --resume\n" in start
    assert subprocess.run(["bash", "-n", "job/start.sh"]).returncode == 0
    bash, bare = shutil.which("bash"), {"PATH": str(here)}
    assert bash is not None
    done = subprocess.run([bash, "job/start.sh", "0"], env=bare, capture_output=True, text=True)
    told = "torchrun is not on PATH: activate the environment in which shardlang is installed\n"
    assert (done.returncode, done.stderr) == (127, told)

    said = launch("--ranks", "4", "--nodes", "2", "--to", "slurm", "--sbatch", "time=1:00:00", "-o", "100% job")
    assert said.exit_code == 0, said.output
    script = (here / "100% job" / "job.sbatch").read_text()
    assert "#SBATCH --time=1:00:00\n" in script and "#SBATCH --signal=B:USR1@120\n" in script
    assert f"#SBATCH --output='{here}/100%% job/logs/job.log'\n" in script
    assert "start it: sbatch '100% job/job.sbatch'\n" in said.output

    assert "the job asks for 2 CPUs and no GPU on each host; `--device cuda` asks for one a rank\n" in said.output
    assert "#SBATCH --cpus-per-task=2\n" in script and "gpus" not in script

    said = launch("--ranks", "4", "--to", "ranktable", "--nodes", "2", "--hosts", "a,b", "-o", "table")
    table = json.loads((here / "table" / "rank_table.json").read_text())
    assert [server["server_id"] for server in table["server_list"]] == ["a", "b"]
    again = ("--ranks", "4", "--to", "torchrun", "--rank-table", "table/rank_table.json", "-o", "job")
    said = launch(*again)
    assert said.exit_code == 2 and "error[SH521]: the host `a` is not found from here" in said.output


CARD = "device card {\n  memory = 80GB\n}\n"


@pytest.mark.parametrize(
    ("head", "more", "gpus", "cpus", "says"),
    [
        (CARD, (), "4", "4", "4 CPUs and 4 GPUs on each host"),
        (CARD, ("--device", "cpu"), "", "4", "4 CPUs and no GPU on each host\n"),
        ("", ("--device", "cuda"), "4", "4", "4 CPUs and 4 GPUs on each host"),
        (
            CARD,
            ("--sbatch", "gres=gpu:h100:4", "--sbatch", "cpus-per-gpu=12"),
            "",
            "",
            "CPUs as --sbatch says and GPUs",
        ),
        (
            CARD.replace("}", '  profile = "card.json"\n}'),
            (),
            "",
            "4",
            "4 CPUs and no GPU on each host; `--device cuda`",
        ),
    ],
)
def test_slurm_is_asked_for_what_the_device_of_the_file_is(
    head: str, more: tuple[str, ...], gpus: str, cpus: str, says: str, here: Path
) -> None:
    profile = json.dumps({"format": 1, "device": "card", "asynchronous": False})
    (here / "card.json").write_text(profile)
    (here / "My Net.shard").write_text(NET.replace("strategy", f"{head}\nstrategy", 1))
    said = launch("--ranks", "8", "--nodes", "2", "--to", "slurm", "-o", "job", *more)
    assert said.exit_code == 0 and says in said.output, said.output
    script = (here / "job" / "job.sbatch").read_text()
    for option, count in (("gpus-per-node", gpus), ("cpus-per-task", cpus)):
        assert (f"#SBATCH --{option}={count}\n" in script) == bool(count) == (f"--{option}" in script)


POD = CARD + "cluster pod {\n  device = card\n  devices = 2\n}\n"


@pytest.mark.parametrize(
    ("ranks", "more", "hosts"),
    [("8", (), 4), ("8", ("--nodes", "2"), 2), ("2", (), 1), ("3", (), 1), ("8", ("--device", "cpu"), 4)],
)
def test_without_nodes_a_job_has_the_hosts_of_the_files_cluster(
    ranks: str, more: tuple[str, ...], hosts: int, here: Path
) -> None:
    (here / "My Net.shard").write_text(NET.replace("strategy", f"{POD}\nstrategy", 1))
    said = launch("--ranks", ranks, "--to", "slurm", "-o", "job", *more)
    assert said.exit_code == 0, said.output
    assert f"#SBATCH --nodes={hosts}\n" in (here / "job" / "job.sbatch").read_text()
    line = "the job has 4 hosts of 2 ranks, as the cluster `pod` says; `--nodes` takes another number\n"
    assert (line in said.output) == (hosts == 4)


def test_a_job_says_what_is_not_there_and_how_it_starts_on_its_hosts(here: Path) -> None:
    text = (
        (ROOT / "examples" / "llama.shard")
        .read_text("utf-8")
        .replace("  precision", '  init = safetensors("w.st")\n  precision')
    )
    begin, end = text.index("cluster pod"), text.index("train {")
    (here / "My Net.shard").write_text((text[:begin] + text[end:]).replace("clusters: h100\n", "clusters: h100_pod\n"))
    options = ("--ranks", "64", "--strategy", "fsdp", "--to", "slurm", "-o", "job")
    said = launch(*options)
    assert said.exit_code == 0, said.output
    for path in ("data/*.bin", "w.st"):
        assert f"warning: beside My Net.shard there is no `{path}`; where the hosts lack it too" in said.output
    started = "torchrun --nnodes 8 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST main.py"
    assert f"    {started}\n" in (here / "job" / "main.py").read_text()
    (here / "data").mkdir()
    for path in ("data/a.bin", "w.st"):
        (here / path).touch()
    assert "warning" not in launch(*options).output


def test_a_program_for_each_number_of_hosts(here: Path) -> None:
    hosts = "localhost,127.0.0.1,127.0.0.2"
    said = launch("--ranks", "6", "--nnodes", "1:3", "--to", "torchrun", "--hosts", hosts, "-o", "job")
    assert said.exit_code == 0, said.output
    main = (here / "job" / "main.py").read_text()
    assert "rt.main_by_size({2: 'ranks-2', 4: 'ranks-4', 6: 'ranks-6'})" in main
    assert "ranks=4" in (here / "job" / "ranks-4" / "main.py").read_text()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    refused = warm.run([sys.executable, "job/main.py"], env=environment)
    assert refused.returncode == 3 and "there is a program for each of 2, 4, 6 ranks" in refused.stderr
    environment |= {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "localhost", "MASTER_PORT": "29477"}
    refused = warm.run([sys.executable, "job/main.py"], env=environment)
    assert "8 ranks were started, and there are programs for 2, 4, 6" in refused.stderr


def test_sizes_that_fit_no_mesh_are_left_out(here: Path) -> None:
    (here / "My Net.shard").write_text(NET.replace("mesh dp = auto", "mesh mp = 4, dp = auto\n  split input over mp"))
    said = launch("--ranks", "8", "--nodes", "1:4", "--to", "slurm", "-o", "j")
    assert said.exit_code == 0, said.output
    assert "no program for 6 ranks on 3 hosts: " in said.output and "no program for 2 ranks" in said.output
    assert "{4: 'ranks-4', 8: 'ranks-8'}" in (here / "j" / "main.py").read_text()
    said = launch("--ranks", "6", "--nodes", "1:3", "--to", "slurm", "-o", "k")
    assert said.exit_code == 1 and "SH303" in said.output and not (here / "k").exists()


REFUSED = [
    (("--nnodes", "3:2"), "SH520", "3 hosts are more than 2"),
    (("--nodes", "0"), "SH520", "a job has 1 to 65,536 hosts"),
    (("--nodes", "two"), "SH520", "`two` is no number of hosts"),
    (("--nodes", "3"), "SH520", "4 ranks do not divide over 3 hosts"),
    (("--hosts", "localhost"), "SH520", "1 hosts are named, and the job has 2"),
    (("--hosts", "localhost,localhost"), "SH520", "the host `localhost` is named twice"),
    (("--hosts", "localhost,$(rm)"), "SH520", "`$(rm)` is no name and no address of a host"),
    (("--hosts", "localhost,nowhere.invalid"), "SH521", "the host `nowhere.invalid` is not found from here"),
    (("--name", "My Job"), "SH522", "`My Job` is no name of a job, which is a letter or digit, then"),
    (("--name", "-job"), "SH522", "`-job` is no name of a job"),
    (("--name", "a" * 60), "SH522", "is no name of a job"),
    (("--there", "job"), "", "--there is a path from /"),
    (("--image", "x"), "", "--image is for --to kubernetes"),
    (("--sbatch", "time=1"), "", "--sbatch is for --to slurm"),
    (("--submit",), "", "nothing starts --to torchrun from here"),
]


@pytest.mark.parametrize(("more", "code", "said"), REFUSED, ids=[" ".join(more)[:30] for more, _, _ in REFUSED])
def test_what_does_not_fit_is_refused_before_anything_is_written(
    here: Path, more: tuple[str, ...], code: str, said: str
) -> None:
    done = launch(*TORCHRUN, *more)
    assert done.exit_code == 2 and said in " ".join(done.output.split()), done.output
    assert (f"error[{code}]" in done.output and "help: " in done.output) or not code
    assert not (here / "job").exists()


def test_a_name_is_held_to_what_its_launcher_takes(here: Path) -> None:
    """Kubernetes takes a label of DNS; the others take more."""
    kubernetes = ("--to", "kubernetes", "--image", "team/shard:1")
    for name in ("My_Job", "7B.v2"):
        done = launch("--ranks", "4", "--nodes", "2", *kubernetes, "-o", "pods", "--name", name)
        assert done.exit_code == 2 and not (here / "pods").exists()
        assert f"`{name}` is no name of a job on Kubernetes, which is a lower-case letter, then" in done.output
        to_slurm = ("--ranks", "4", "--nodes", "2", "--to", "slurm")
        assert launch(*to_slurm, "-o", f"slurm-{name}", "--name", name).exit_code == 0
        assert f"#SBATCH --job-name={name}\n" in (here / f"slurm-{name}" / "job.sbatch").read_text()
        assert launch(*TORCHRUN[:-1], f"torchrun-{name}", "--name", name).exit_code == 0
        assert f"--rdzv-id {name} " in (here / f"torchrun-{name}" / "start.sh").read_text()


def test_options_of_sbatch_are_one_line_and_not_the_jobs_own(here: Path) -> None:
    wrong = (("time=1\n#SBATCH --uid=0", "is no option of sbatch"), ("nodes=9", "is set by the job itself"))
    for option, said in wrong:
        done = launch("--ranks", "4", "--to", "slurm", "--sbatch", option, "-o", "job")
        assert done.exit_code == 2 and said in done.output and not (here / "job").exists()


def test_files_of_somebody_else_stay(here: Path) -> None:
    (here / "job").mkdir()
    (here / "job" / "start.sh").write_text("mine\n")
    done = launch(*TORCHRUN)
    assert done.exit_code == 2 and "SH512" in done.output
    assert os.listdir(here / "job") == ["start.sh"]
    (here / "job" / "start.sh").unlink()
    assert launch(*TORCHRUN).exit_code == launch(*TORCHRUN).exit_code == 0


def test_the_cluster_starts_what_is_submitted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a client that notes how it is called; the cluster has the Training Operator alone."""
    (here / "bin").mkdir()
    for client in ("sbatch", "kubectl"):
        path = here / "bin" / client
        path.write_text(f'#!/bin/sh\necho "{client} $*" >> {here}/called\ncase "$*" in *trainjobs*) exit 1 ;; esac\n')
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}/bin:{os.environ['PATH']}")
    common = ("--ranks", "4", "--nodes", "2", "-o", "job", "--submit")
    assert launch(*common, "--to", "slurm").exit_code == 0
    assert launch(*common, "--to", "kubernetes", "--image", "team/shard:1").exit_code == 0
    called = (here / "called").read_text().splitlines()
    assert called[0] == "sbatch job/job.sbatch" and called[-1] == "kubectl apply -f job/pytorchjob.yaml"
    monkeypatch.setenv("PATH", "/nowhere")
    done = launch(*common, "--to", "slurm")
    assert done.exit_code == 2 and "--submit needs `sbatch`" in done.output


@pytest.mark.slow
def test_two_agents_train_and_end(here: Path) -> None:
    """Both hosts are this machine; the job goes on from its checkpoints when it is started again."""
    assert launch(*TORCHRUN, "--device", "cpu", "--port", "29471", "--restarts", "0").exit_code == 0
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, "OMP_NUM_THREADS": "1"}
    how = {"env": environment, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    hosts = [subprocess.Popen(["bash", "job/start.sh", str(number)], **how) for number in (1, 0)]
    said = [host.communicate() for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    assert sum("step 20/20" in out for out, _ in said) == 1, said
    assert (here / "checkpoints" / "step-20").is_dir()
    logs = [here / "job" / "logs" / f"rank-{rank}.log" for rank in range(4)]
    assert all(log.read_text().startswith(LOG_MARK) for log in logs)

    logs[3].write_text("mine\n")
    hosts = [subprocess.Popen(["bash", "job/start.sh", str(number)], **how) for number in (1, 0)]
    said = [host.communicate() for host in hosts]
    assert any("error[SH512]" in err and "rank-3.log" in err for _, err in said), said
    assert logs[3].read_text() == "mine\n"
