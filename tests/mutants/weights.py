"""Faults of weights on their way out: name maps read backwards, checkpoints in the form of torch's."""

from __future__ import annotations

from tests.mutants.fault import Fault

MISTAKES = ("weights/test_mistakes.py",)
NUMBERS = ("weights/test_numbers.py",)
CONVERT = ("weights/test_convert.py",)
BY_TORCH = ("bind/test_distributed_checkpoints.py",)

FAULTS = (
    Fault("parts are joined as the weights have them", "queries in the place of keys", "weights/backwards.py",
          "pieces.sort(key=lambda piece: piece.first)", "pieces.sort(key=lambda piece: piece.ours)", MISTAKES),
    Fault("a tensor may be filled in part", "rows that nothing has written", "weights/backwards.py",
          "    if at != 1:", "    if at > 1:", MISTAKES),
    Fault("two lines may fill one part", "weights that are lost", "weights/backwards.py",
          "if piece.first < at or piece.rule.transposed", "if piece.rule.transposed", MISTAKES),
    Fault("shapes are not compared", "a model of another size", "weights/backwards.py",
          "        if mine.shape != due:", "        if not due:", MISTAKES),
    Fault("tensors that are left over are not told", "trained weights that stay behind", "weights/backwards.py",
          "    if without:", "    if not found:", MISTAKES),
    Fault("a tied tensor is not turned back", "a matrix that is not transposed", "weights/theirs.py",
          "return whole.transpose() if filling.transposed else whole", "return whole", MISTAKES),
    Fault("what may be tied is taken from the other model", "a head that was trained and is not",
          "weights/export.py", "        if same is not None:", "        if same is None and sink.failed:", MISTAKES),
    Fault("numbers that become infinite pass", "f16", "weights/elements.py", "    if lost.any():",
          "    if lost.all():", MISTAKES),
    Fault("bf16 is cut off", "numbers that round another way than torch's", "weights/elements.py",
          "rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16)", "rounded = (bits >> 16)", NUMBERS),
    Fault("an index may name any file", "an index that writes elsewhere", "weights/like.py",
          'if Path(home).name != home or home.startswith(".") or not', "if not", MISTAKES),
    Fault("a pickle may name anything", "a hostile checkpoint", "runtime/dcp/foreign.py",
          "            raise RunError(\"SH616\", fact, file=self.path, help=_HELP)\n",
          "            return super().find_class(module_name, global_name)\n", CONVERT),
    Fault("metadata may name files elsewhere", "a hostile checkpoint that reads elsewhere", "runtime/dcp/foreign.py",
          'os.path.isabs(file) or ".." in Path(file).parts', "not file", CONVERT),
    Fault("parts of a tensor may overlap", "metadata that do not say all", "runtime/dcp/foreign.py",
          "    if found is None:\n        raise ValueError", "    if not parts:\n        raise ValueError", CONVERT),
    Fault("a tensor is opened by any pickle", "a hostile tensor", "runtime/dcp/foreign.py",
          'map_location="cpu", weights_only=True', 'map_location="cpu", weights_only=False', CONVERT),
    Fault("a chunk is read from the beginning", "every chunk but the first", "runtime/dcp/written.py",
          "self.parts.read(name, data.chunk.offsets, data.chunk.sizes)",
          "self.parts.read(name, [0] * len(data.chunk.sizes), data.chunk.sizes)", CONVERT),
    Fault("the second part is where the first is", "joined tensors", "weights/theirs.py",
          "            before = after\n", "", BY_TORCH),
    Fault("a writer forgets its run", "a run that cannot go on", "torch/checkpoints/writer.py",
          "index_of(self.step, self._facts, files", "index_of(self.step, {}, files", BY_TORCH),
)  # fmt: skip
