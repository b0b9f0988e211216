"""Rank tables: read into hosts and ranks, written, and refused where they are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardlang.errors import RunError
from shardlang.launch import rank_table
from shardlang.launch.rank_table import Server

TABLE: dict[str, Any] = {
    "version": "1.0",
    "server_count": "2",
    "server_list": [
        {
            "server_id": "10.0.0.2",
            "device": [
                {"device_id": "0", "device_ip": "192.1.2.6", "rank_id": "2"},
                {"device_id": "1", "device_ip": "192.1.3.6", "rank_id": "3"},
            ],
            "host_nic_ip": "reserve",
        },
        {
            "server_id": "10.0.0.1",
            "device": [
                {"device_id": "1", "device_ip": "192.1.3.5", "rank_id": "1"},
                {"device_id": "0", "device_ip": "192.1.2.5", "rank_id": "0"},
            ],
        },
    ],
    "status": "completed",
}
SERVERS = (
    Server("10.0.0.1", ((0, "192.1.2.5"), (1, "192.1.3.5"))),
    Server("10.0.0.2", ((0, "192.1.2.6"), (1, "192.1.3.6"))),
)


def written(folder: Path, table: Any) -> Path:
    path = folder / "table.json"
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    return path


def test_a_table_is_hosts_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    assert rank_table.read(written(tmp_path, TABLE)) == SERVERS


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    text = rank_table.text("net", SERVERS)
    assert rank_table.read(written(tmp_path, text)) == SERVERS
    named = (Server("a", ((0, ""), (1, ""))),)
    assert rank_table.read(written(tmp_path, rank_table.text("net", named))) == named


def changed(*path: Any, to: Any) -> Any:
    table = json.loads(json.dumps(TABLE))
    at = table
    for part in path[:-1]:
        at = at[part]
    if to is None:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return table


FIRST = ("server_list", 1, "device", 1)
WRONG: list[tuple[Any, str]] = [
    ("{", "the file is no JSON"),
    ("[" * 100_000, "the file is no JSON"),
    ("[]", "the table is no JSON object"),
    ('{"version": "1.0", "version": "1.0"}', "`version` is given twice in one object"),
    (changed("server_list", to=None), "the table has no `server_list`"),
    (changed("server_list", to=[]), "the table has no `server_list`"),
    (changed("server_list", 0, to=3), "server 0 is no JSON object"),
    (changed("server_list", 0, "server_id", to=None), "server 0 has no `server_id`"),
    (changed("server_list", 0, "server_id", to="10.0.0.1"), "the server `10.0.0.1` is there twice"),
    (changed("server_count", to="3"), "`server_count` is 3, and there are 2 servers"),
    (changed("server_list", 0, "device", to=[]), "the server `10.0.0.2` has no `device`"),
    (changed(*FIRST, "device_id", to="1"), "ranks 0 and 1 have one device: 1 of `10.0.0.1`"),
    (changed(*FIRST, "rank_id", to="4"), "rank 0 is missing: the next device, 1 of `10.0.0.1`, has rank 1"),
    (changed(*FIRST, "rank_id", to="1"), "rank 0 is missing"),
    (changed("server_list", 0, "device", 0, "rank_id", to="1"), "rank 1 is there twice"),
    (changed(*FIRST, "rank_id", to="zero"), "`rank_id` of a device of `10.0.0.1` is no number: 'zero'"),
    (changed(*FIRST, "rank_id", to=True), "`rank_id` of a device of `10.0.0.1` is no number: True"),
    (changed(*FIRST, "device_ip", to=7), "`device_ip` of a device of `10.0.0.1` is no text"),
    (
        changed("server_list", 0, "device", to=[{"device_id": "0", "rank_id": "2"}]),
        "`10.0.0.1` has 2 ranks, and `10.0.0.2` has 1",
    ),
]


@pytest.mark.parametrize(("table", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_a_wrong_table_is_refused(tmp_path: Path, table: Any, said: str) -> None:
    with pytest.raises(RunError) as refused:
        rank_table.read(written(tmp_path, table))
    assert refused.value.code == "SH523" and said in str(refused.value) and refused.value.help


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read: No such file"):
        rank_table.read(tmp_path / "none.json")
    (tmp_path / "large.json").open("wb").truncate(1 << 40)
    with pytest.raises(RunError, match="larger than 64 MB"):
        rank_table.read(tmp_path / "large.json")
