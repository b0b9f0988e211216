"""Faults of what runs write: a user's files replaced or removed, runs that are not kept apart, what stays behind."""

from __future__ import annotations

from tests.mutants.fault import Fault

LOCKS = ("runtime/test_locks.py",)
CHECKPOINTS = ("runtime/test_checkpoints.py",)
GOING_ON = ("runtime/test_going_on.py",)
IN_THE_WAY = ("end_to_end/test_own_files.py::test_what_is_in_the_way_is_told_before_anything_is_written",)

FAULTS = (
    Fault("a folder with the name of a checkpoint is removed", "folders of the user's",
          "runtime/state/checkpoint_folders.py", "    if index is None:\n        return folder",
          "    if index is None:\n        return None", CHECKPOINTS),
    Fault("what else is in a checkpoint is not looked at", "a user's file in a checkpoint",
          "runtime/state/checkpoint_folders.py", "    return next(others, None)", "    return None", CHECKPOINTS),
    Fault("keep removes what any index names", "links and folders of others", "runtime/state/checkpoints.py",
          "if n <= step and folders.foreign(path) is None)", "if n <= step and path)", CHECKPOINTS),
    Fault("a checkpoint goes before its successor is there", "a run that is killed then",
          "runtime/state/checkpoint_folders.py", "        os.replace(whole, old)\n    os.replace(draft, whole)",
          "        _remove(whole)\n    os.replace(draft, whole)", CHECKPOINTS),
    Fault("the index of a checkpoint is removed first", "folders whose removal was cut short",
          "runtime/state/checkpoint_folders.py", "(p.name == INDEX, p.name)", "(p.name != INDEX, p.name)", CHECKPOINTS),
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
