"""Tables of positions that a module keeps in buffers of its own: what is written instead of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from shardlang.importing.imported import Imported, Wanted, import_module
from shardlang.importing.steps.frequencies import Waves, frequencies, powers, sinusoids
from tests.importing.test_import import EXACT

WIDE, ROWS = 16, 40


def imported(net: Callable[[], nn.Module], **inputs: Tensor) -> Imported:
    given = inputs or {"ids": torch.randint(2, 30, (2, 6))}
    return import_module(lambda: (net(), dict(given)), Wanted("positions:net", {}))


class Turned(nn.Module):
    """Scores of queries and keys whose halves are turned, by frequencies that are given."""

    def __init__(self, speeds: Tensor) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.register_buffer("speeds", speeds.float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        turns = torch.arange(x.shape[1]).float()[:, None] * self.speeds
        turns = torch.cat([turns, turns], -1)
        q, k = (each * turns.cos() + halved(each) * turns.sin() for each in (self.query(x), self.key(x)))
        return q @ k.transpose(1, 2)


def halved(x: Tensor) -> Tensor:
    return torch.cat([-x[..., WIDE // 2 :], x[..., : WIDE // 2]], -1)


class TurnedByHalves(Turned):
    """The same, half by half, by tables that are 1.25 times as large, as those of YaRN."""

    def forward(self, x: Tensor) -> Tensor:
        turns = torch.arange(x.shape[1]).float()[:, None] * self.speeds
        q, k = (turned(each, turns.cos() * 1.25, turns.sin() * 1.25) for each in (self.query(x), self.key(x)))
        return q @ k.transpose(1, 2)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


SPEEDS = {
    "a base of eight digits": (powers(11158840.0, 8), "base = 11158840.0"),
    "a usual base": (powers(10000.0, 8), "rotary(query(x), over = head_dim, along = seq)"),
    "a part that is not turned": (powers(500000.0, 8) * (torch.arange(8) < 3), "scales = (1.0, 1.0, 1.0, 0.0"),
    "the first alone is turned": (powers(10000.0, 8) * (torch.arange(8) < 1), "scales = (1.0, 0.0, 0.0, 0.0"),
}


@pytest.mark.parametrize("name", SPEEDS)
def test_frequencies_of_a_buffer_are_those_of_rotary(name: str) -> None:
    speeds, wanted = SPEEDS[name]
    found = imported(lambda: Turned(speeds), x=torch.rand(2, 6, WIDE))
    assert wanted in found.text and found.report["largest difference"] <= EXACT


def test_halves_that_are_turned_by_larger_tables_are_rotary_times_a_number() -> None:
    speeds = powers(10000.0, 8) * torch.tensor([1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.25, 0.25])
    found = imported(lambda: TurnedByHalves(speeds), x=torch.rand(2, 6, WIDE))
    assert found.text.count("rotary(") == found.text.count(" * 1.25\n") == 2
    assert "speeds" not in found.text and found.report["largest difference"] <= EXACT


def test_halves_of_another_sign_are_no_rotary() -> None:
    class Other(TurnedByHalves):
        def forward(self, x: Tensor) -> Tensor:
            first, second = self.query(x).chunk(2, dim=-1)
            angle = torch.arange(x.shape[1]).float()[:, None] * powers(10000.0, 8).float()
            cos, sin = angle.cos(), angle.sin()
            return torch.cat([first * cos + second * sin, second * cos + first * sin], -1) + self.key(x)

    assert "rotary(" not in imported(lambda: Other(powers(10000.0, 8)), x=torch.rand(2, 6, WIDE)).text


def test_numbers_that_fall_otherwise_are_no_frequencies() -> None:
    assert frequencies(torch.tensor([1.0, 0.1, 0.4, 0.1])) is None
    assert frequencies(torch.tensor([0.9, 0.1, 0.01, 0.001])) is None


class Placed(nn.Module):
    """Words and their places, by a table that is no parameter and no part of the state_dict."""

    def __init__(self, table: Tensor, rows: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(30, WIDE), nn.Linear(WIDE, 5)
        self.register_buffer("table", table.float(), persistent=False)
        self.rows = rows

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids) + self.rows(self.table, ids))


def counted(ids: Tensor) -> Tensor:
    """Places of words that are no padding, as a table has them behind its padding."""
    there = (ids != 1).long()
    return torch.cumsum(there, 1) * there + 1


LOOKUPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the first rows": lambda table, ids: table[: ids.shape[1]],
    "index": lambda table, ids: table[torch.arange(ids.shape[1])],
    "rows behind an offset": lambda table, ids: table.index_select(0, torch.arange(ids.shape[1]) + 2),
    "places of the data": lambda table, ids: table.index_select(0, counted(ids).view(-1)).view(*ids.shape, WIDE),
    "embedding": lambda table, ids: torch.nn.functional.embedding(counted(ids), table),
}
TABLES = {
    "side by side": Waves(10000.0, WIDE // 2, WIDE // 2, False, None),
    "in turns": Waves(10000.0, WIDE // 2, WIDE // 2, True, None),
    "as tensor2tensor": Waves(10000.0, WIDE // 2, WIDE // 2 - 1, False, None),
    "with an empty row": Waves(10000.0, WIDE // 2, WIDE // 2 - 1, False, 1),
}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_rows_of_waves_are_computed_from_their_places(lookup: str, kind: str) -> None:
    found = imported(lambda: Placed(TABLES[kind].table(ROWS), LOOKUPS[lookup]))
    assert "sin(" in found.text and "10000.0 **" in found.text and "state" not in found.text
    assert found.report["largest difference"] <= EXACT


@pytest.mark.parametrize("kind", TABLES)
def test_waves_are_known_by_their_numbers(kind: str) -> None:
    waves = TABLES[kind]
    table = waves.table(ROWS).float()
    assert sinusoids(table) == waves
    assert sinusoids(table + 1e-4) is None and sinusoids(table[:, 1:]) is None
    other = table.clone()
    other[ROWS - 3] = 0
    assert (sinusoids(other) is None) == (waves.empty is not None) and sinusoids(torch.rand(ROWS, WIDE)) is None


def test_a_file_of_weights_may_have_the_table() -> None:
    class Kept(Placed):
        def __init__(self) -> None:
            super().__init__(torch.zeros(1), LOOKUPS["the first rows"])
            self.register_buffer("table", TABLES["in turns"].table(ROWS).float())

    found = imported(Kept)
    assert "state" not in found.text and "ignore table\n" in found.names
    assert found.report["largest difference"] <= EXACT


def test_places_that_are_counted_from_a_number_are_an_arange() -> None:
    class Numbered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.words, self.head = nn.Embedding(ROWS, WIDE), nn.Embedding(30, WIDE), nn.Linear(WIDE, 5)
            self.register_buffer("ids", torch.arange(ROWS - 2)[None] + 2, persistent=False)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.words(ids) + self.places(self.ids[:, : ids.shape[1]]))

    assert "places(arange(seq) + 2)" in imported(Numbered).text


def test_the_base_of_frequencies_has_the_fewest_digits_that_give_them() -> None:
    for base in (10000.0, 500000.0, 11158840.0, 1e6, 150000.0, 1234567.0):
        for count in (4, 32, 64):
            assert frequencies(powers(base, count).float()) == (base, ())
    llama = [1.0, *(1.0 if number < 4 else 0.125 for number in range(1, 8))]
    found = frequencies((powers(500000.0, 8) * torch.tensor(llama)).float())
    assert found is not None and found[0] == 500000.0 and math.isclose(found[1][-1], 0.125, rel_tol=1e-6)
