# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A shop that sells as often as the first argument says, and says what became of its events."""

import sys

import strata

SOLD = strata.Event("pyshop:sold", what=str, pieces="u32", flags="hex64", change="i16", open=bool, price=float)
CLOSED = strata.Event("pyshop:closed")

count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
recorded = sum(SOLD("brötchen", pieces, 0x10 + pieces, -pieces, True, pieces / 2) for pieces in range(count))
recorded += CLOSED()
# A value that its field cannot have costs the record, and nothing else.
recorded += SOLD("bread", "two", 0, 0, False, 0)
strata.flush()
print(f"shop.py: {recorded} recorded, {strata.lost()} lost, {strata.error() or 'connected'}")
