"""Faults of what runs write: a user's files replaced or removed, runs that are not kept apart, what stays behind."""

from __future__ import annotations

from tests.mutants.fault import Fault

LOCKS = ("runtime/test_locks.py",)
CHECKPOINTS = ("runtime/test_checkpoints.py",)
GOING_ON = ("runtime/test_going_on.py",)
APART = ("runtime/test_hosts_apart.py",)
OVERWRITE = ("runtime/test_overwrite.py::test_ranks_that_torchrun_starts_again_overwrite_nothing",)
ENDING = ("cli/test_ending.py::test_a_sweep_of_another_command_leaves_a_folder_that_is_being_made",)
MISSING = ("cli/test_missing.py::test_an_emitted_program_says_what_to_install",)
ASKED = ("runtime/test_asked.py",)
SHARES = ("runtime/test_shares.py",)
IN_THE_WAY = ("end_to_end/test_own_files.py::test_what_is_in_the_way_is_told_before_anything_is_written",)

FAULTS = (
    Fault("a folder with the name of a checkpoint is removed", "folders of the user's",
          "checkpoints/folders.py", "    if index is None:\n        return folder",
          "    if index is None:\n        return None", CHECKPOINTS),
    Fault("a run begins anew beside any checkpoint", "--resume that goes on from another run", "runtime/step/resume.py",
          "if not program.resume and not program.overwrite:", "if program is None:", GOING_ON),
    Fault("what a killed run left counts as none", "a checkpoint that is about to be replaced",
          "runtime/step/resume.py", "        tidy(written.folder)\n", "", GOING_ON),
    Fault("any folder called step-N is a checkpoint", "folders of the user's beside a new run",
          "checkpoints/folders.py", "for step, path in steps(folder).items() if _index(path) is not None}",
          "for step, path in steps(folder).items()}", GOING_ON),
    Fault("a checkpoint with a user's file is overwritten", "notes in a checkpoint", "checkpoints/folders.py",
          "    for path in (*found, *olds):\n        require_own(path)\n", "", GOING_ON),
    Fault("the newest checkpoint is overwritten first", "a run that is killed as it begins anew",
          "runtime/state/checkpoints.py", "[found[step] for step in sorted(found)]", "[*found.values()]", GOING_ON),
    Fault("checkpoints are overwritten at each start", "ranks that are started again", "runtime/step/train.py",
          "        if self.program.resume:\n",
          "        if self.program.resume and not self.program.overwrite:\n", GOING_ON),
    Fault("torchrun's ranks overwrite at each start", "a job that is started again", "runtime/launch/entry.py",
          "options.overwrite and started_before() > 0", "False", OVERWRITE),
    Fault("the flight recorder's files keep a folder", "log folders for ever", "run_files.py",
          "if _FLIGHT.fullmatch(path.name):", "if not path.name:", LOCKS),
    Fault("any file may be the flight recorder's", "a user's file in a log folder", "run_files.py",
          "return is_own(path, FLIGHT) or (", "return path.is_file() or (", LOCKS),
    Fault("a folder is swept before it is locked", "commands that start at once", "scratch.py",
          'begun = made.path / f"{_LOCK}-begun"', "begun = made.path / _LOCK", ENDING),
    Fault("a folder is swept while its command lives", "commands that start at once", "scratch.py",
          "                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n                shutil",
          "                shutil", ENDING),
    Fault("a program without torch says nothing", "SH517 of a compiled program", "runtime/packages.py",
          'lacking(error, "the program") if file and is_own(Path(file), EMITTED) else None', "None", MISSING),
    Fault("whoever imports the runtime is ended", "an import without torch", "runtime/packages.py",
          "if file and is_own(Path(file), EMITTED) else None", "", MISSING),
    Fault("what else is in a checkpoint is not looked at", "a user's file in a checkpoint",
          "checkpoints/folders.py", "    return next(others, None)", "    return None", CHECKPOINTS),
    Fault("keep removes what any index names", "links and folders of others", "runtime/state/checkpoints.py",
          "if n <= step and folders.foreign(path) is None)", "if n <= step and path)", CHECKPOINTS),
    Fault("a checkpoint goes before its successor is there", "a run that is killed then",
          "checkpoints/folders.py", "        os.replace(whole, old)\n    os.replace(draft, whole)",
          "        _remove(whole)\n    os.replace(draft, whole)", CHECKPOINTS),
    Fault("the index of a checkpoint is removed first", "folders whose removal was cut short",
          "checkpoints/folders.py", "(p.name == INDEX, p.name)", "(p.name != INDEX, p.name)", CHECKPOINTS),
    Fault("a byte of a checkpoint is not checked", "a flipped byte that is loaded in silence",
          "checkpoints/rank_files.py",
          "if _crcs(found, cells) != sums[number * cells.across + left : number * cells.across + right]:",
          "if not sums:", CHECKPOINTS),
    Fault("the index is not checked", "a flipped byte of the index", "checkpoints/index.py",
          'if not mark or crc.rstrip(b"}\\n") != str(self.crc32).encode():', "if not mark:", CHECKPOINTS),
    Fault("two parts of one rank pass", "an index with a part twice", "checkpoints/index.py",
          "if len(set(wrote)) != len(wrote):", "if not wrote and ranks < 0:", CHECKPOINTS),
    Fault("a header may be of any length", "a header of 1 GB", "checkpoints/rank_files.py",
          "if length != facts.header or length > min(size, _MOST_HEADER):", "if length > size:", CHECKPOINTS),
    Fault("one rank's damage is its own", "a broken part that another rank reads", "runtime/step/resume.py",
          "if not failed and found is not None:", "if found is not None:", APART),
    Fault("ranks do not compare what they see", "a disk for each host", "runtime/step/resume.py",
          "require_one(path, exchanged([place(), _seen(path)]))", "exchanged([place(), _seen(path)])", APART),
    Fault("the data of a checkpoint is not compared", "a run on other data", "runtime/step/resume.py",
          "    if not differs:", "    if not own:", GOING_ON),
    Fault("a checkpoint is written from what is trained", "a save beside the next step",
          "runtime/state/checkpoints.py", "args=(step, whole, copied, done, index, self.best)",
          "args=(step, whole, mine, done, index, self.best)", CHECKPOINTS),
    Fault("an error beside training is kept to itself", "a full disk", "runtime/state/checkpoints.py",
          "            self._error = error", "            del error", CHECKPOINTS),
    Fault("the rank that is asked to save ends alone", "SIGUSR1 to one rank", "runtime/step/asked.py",
          "primitives.begin_reduce(sent, everyone()).wait", "lambda: sent", ASKED),
    Fault("replicas leave the writing to the first", "a file that is larger than the others",
          "runtime/state/shares.py", "owner = loads.index(min(loads))", "owner = 0", SHARES),
    Fault("any file may be replaced", "programs and data named by mistake", "owned.py",
          'return "" if kind.is_own(path) else', 'return "" if kind else', IN_THE_WAY),
    Fault("no lock is taken", "two runs that write to one place", "locks.py",
          "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)", "os.fstat(descriptor)", LOCKS),
    Fault("a lock on a file that has gone is kept", "a run that begins as another ends", "locks.py",
          "return os.path.samestat(file.stat(), os.fstat(descriptor))", "return descriptor >= 0", LOCKS),
    Fault("a draft is always a leftover", "a user's file beside the weights", "locks.py",
          "if os.path.lexists(draft) and str(path) not in _held and not _is_lock(lock):", "if not path:", IN_THE_WAY),
    Fault("runs share a folder of logs", "runs at once", "run_files.py",
          'itertools.count(max(there, default=0) + 1):\n            folder = parent / f"run-{number}"\n'
          '            require_apart(folder, "logs")\n            with suppress(FileExistsError):\n'
          "                folder.mkdir()",
          'itertools.count(1):\n            folder = parent / f"run-{number}"\n'
          '            require_apart(folder, "logs")\n            with suppress(FileExistsError):\n'
          "                folder.mkdir(exist_ok=True)", LOCKS),
    Fault("folders of logs go with what is in them", "a user's notes beside a log", "run_files.py",
          "if not all(_is_unchanged(path, sums) for path in written):",
          'if not all(path.suffix in (".py", ".log") for path in written):', LOCKS),
    Fault("verify writes the program's checkpoints", "a user's folder of checkpoints", "interpret/verify/judge.py",
          "program.checkpoint, program.log = None, None", "program.log = None",
          ("end_to_end/test_own_files.py::test_checkpoints_beside_files_of_the_users",)),
    Fault("nohup is not heeded", "runs whose terminal is closed", "ending.py",
          "        if signal.getsignal(number) != signal.SIG_IGN:\n            signal.signal(number, _end)",
          "        signal.signal(number, _end)",
          ("runtime/test_launch.py::test_a_closed_terminal_does_not_end_what_nohup_started",)),
    Fault("a second signal is another exception", "what is cleaned up after the first", "ending.py",
          "if len(_come) == 1:", "if _come:", ("runtime/test_launch.py::test_further_signals_end_it_at_once",)),
    Fault("another optimizer is taken for the same", "a run that goes on with another", "runtime/step/resume.py",
          "if kind not in (None, kinds[path]) or theirs != sorted(kept):", "if not kinds:", GOING_ON),
)  # fmt: skip
