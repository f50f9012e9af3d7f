"""How a process of the release before commits on PostgreSQL: every column once per write, 14 of them."""

from twiceproof.records import Address, Check, Insert, Remove, Replace

COMMIT = f"SELECT twiceproof.twiceproof_commit({', '.join(f'${n}' for n in range(1, 15))})".encode()
MARK = "\x1f"
NOTHING = Insert(Address("", "", ""), "")


def older_call(batches):
    """The statement and its values; answered like those of today."""
    numbered = [(place, batch, write) for place, batch in enumerate(batches, 1) for write in batch.writes]
    writes = [write for _, _, write in numbered]
    puts = [write if isinstance(write, Insert | Replace) else NOTHING for write in writes]
    values = [
        MARK,
        "".join(map(_act, writes)),
        _array(place for place, _, _ in numbered),
        _array(map(_known, writes)),
        MARK.join(write.at.space for write in writes),
        MARK.join(write.at.kind for write in writes),
        MARK.join(write.at.key for write in writes),
        MARK.join(batch.nonce for _, batch, _ in numbered),
        MARK.join(put.state for put in puts),
        MARK.join(put.queue for put in puts),
        _array("t" if put.draw else "f" for put in puts),
        _array("NULL" if put.lease is None else put.lease for put in puts),
        _array("NULL" if put.due_in is None else put.due_in for put in puts),
        MARK.join(put.body or "" for put in puts),
    ]
    return COMMIT, [value.encode() for value in values]


def _act(write):
    match write:
        case Insert():
            return "i"
        case Replace():
            return "r" if write.body is None else "R"
        case Remove():
            return "d"
        case Check():
            return "a" if write.absent else "c"


def _known(write):
    if isinstance(write, Insert) or (write.fence is None and write.version is None):
        return 0
    return write.fence if write.fence is not None else -int(write.version)


def _array(parts):
    return f"{{{','.join(map(str, parts))}}}"
