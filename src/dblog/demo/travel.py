"""Time travel: compares earlier versions of the demo's lake with what the source had then.

It checks two things. The tables as they were when the shop was closed for the stocktaking equal, row by row, what the
source had at that moment. And while the shoppers wrote, each batch left a state that the source had: an order and its
items come and go in one transaction (`dblog.demo.shop`), so at the end of each batch the tables `orders` and
`order_items` have the same orders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from dblog.demo.shop import ShopTable, Stock
from dblog.demo.verify import Difference, compare
from dblog.demo.versions import LakeTable

MOST_BATCHES = 20
"""How many batches are checked, spread over all."""


@dataclass(frozen=True)
class Travelled:
    """The result of the comparison."""

    versions: int
    """How many versions of tables were read."""
    differences: tuple[Difference, ...]


def earlier(tables: Sequence[ShopTable], lake: Mapping[str, LakeTable], stock: Stock) -> Travelled:
    """Compare earlier versions with the source."""
    found: list[Difference] = []
    read = set()
    for table in tables:
        version = lake[table.name].at(stock.position)
        rows = lake[table.name].read(table.columns, version).to_pylist()
        then = compare(table, stock.rows[table.name], [tuple(row.values()) for row in rows])
        found += [replace(d, what=f"at the stocktaking (version {version.number}): {d.what}") for d in then]
        read.add((table.name, version))
    orders, items = lake["orders"], lake["order_items"]
    for position in _spread(sorted({v.position for t in (orders, items) for v in t.versions()}), stock.complete):
        mine, theirs = orders.at(position), items.at(position)
        read |= {("orders", mine), ("order_items", theirs)}
        found += _parted(orders.read(["id"], mine)["id"], items.read(["order_id"], theirs)["order_id"], position)
    return Travelled(len(read), tuple(found))


def _parted(orders: pa.ChunkedArray, items: pa.ChunkedArray, position: int) -> list[Difference]:
    """Orders without items, and items without an order."""
    after = f"after the batch that ends at {position}"
    alone = pc.filter(orders, pc.invert(pc.is_in(orders, value_set=items)))
    lost = pc.unique(pc.filter(items, pc.invert(pc.is_in(items, value_set=orders))))
    return [
        *(Difference("orders", (key,), f"{after}: it has no items") for key in alone.to_pylist()),
        *(Difference("order_items", (key,), f"{after}: their order does not exist") for key in lost.to_pylist()),
    ]


def _spread(positions: Sequence[int], first: int) -> list[int]:
    """Some of the positions from the first one on."""
    fit = [position for position in positions if position >= first]
    step = max(1, -(-len(fit) // MOST_BATCHES))
    return fit[::step]
