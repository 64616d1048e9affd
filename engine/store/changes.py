"""Taking content away: erasing a session at its owner's wish, and dropping records whose time has passed.

Leaf hashes and signed heads always stay, so that the session's root and the provider-wide log still verify.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from engine.store import SessionRow, tables
from verifiable.tlog.merkle import leaf_hash


def erase(connection: Connection, row: SessionRow, time: int) -> None:
    """Remove the requests, every leaf's bytes, what was packed, and the secret that salted the leaves."""
    seqs = connection.execute(select(tables.leaf.c.seq).where(tables.leaf.c.session == row.session)).scalars().all()
    _hash_only(connection, row.session, seqs)
    for table in (tables.request, tables.packed):
        connection.execute(delete(table).where(table.c.session == row.session))
    _replace(connection, dataclasses.replace(row, secret=bytes(len(row.secret)), erased=time))


def drop_records(
    connection: Connection, row: SessionRow, leaves: Sequence[int], packed: dict[int, bytes], time: int
) -> None:
    """Replace the leaves' bytes by their hashes, and keep `packed` of their turns."""
    _hash_only(connection, row.session, leaves)
    if packed:
        rows = [{"session": row.session, "turn": turn, "tokens": data} for turn, data in packed.items()]
        connection.execute(insert(tables.packed), rows)
    else:
        connection.execute(delete(tables.request).where(tables.request.c.session == row.session))
    _replace(connection, dataclasses.replace(row, dropped=time))


def _hash_only(connection: Connection, session: bytes, seqs: Sequence[int]) -> None:
    table = tables.leaf
    wanted = set(seqs)
    query = select(table.c.seq, table.c.data).where(table.c.session == session, table.c.data.is_not(None))
    rows = [
        {"at_seq": seq, "new_hash": leaf_hash(data)} for seq, data in connection.execute(query).all() if seq in wanted
    ]
    if rows:
        statement = (
            update(table)
            .where(table.c.session == session, table.c.seq == bindparam("at_seq"))
            .values(data=None, hash=bindparam("new_hash"))
        )
        connection.execute(statement, rows)


def _replace(connection: Connection, row: SessionRow) -> None:
    values = {"secret": row.secret, "erased": row.erased, "dropped": row.dropped, "checksum": row.checksum()}
    connection.execute(update(tables.session).where(tables.session.c.session == row.session).values(**values))
