"""What the errors of the databases mean.

The codes are those of PostgreSQL's appendix "PostgreSQL Error Codes", of MySQL's "Server Error Message Reference" and
of MariaDB's "Error Codes". Above 1899 these two give a number different meanings: such a line says whose it is. What is
in none of the tables is unknown, and is told in the database's own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

#: again: nothing was done, and it may be tried again at once; gone: the connection broke; silent: no answer in time;
#: locked: others keep the row; no_table; wrong: the settings or a right; not_now: it cannot, at the moment;
#: not_here: nor for as long as this server is what it is, and the address may lead to another by now; unknown.
Kind = Literal["again", "gone", "silent", "locked", "no_table", "wrong", "not_now", "not_here", "unknown"]


class Fault(NamedTuple):
    kind: Kind
    meaning: str = ""  #: what the database does, after its name


AGAIN, GONE, SILENT, UNKNOWN = Fault("again"), Fault("gone"), Fault("silent", "does not answer"), Fault("unknown")
NO_TABLE = Fault("no_table", "has no table for locks, or one of another version")
LOCKED = Fault("locked", "keeps the row of the lock locked: another transaction does not end")
READ_ONLY = Fault("not_here", "is read-only, a replica perhaps: locks need one that can be written to")
APART = Fault("not_here", "is cut off from the other servers of its cluster, or was taken out of it")
PASSWORD = Fault("wrong", "does not accept this user and password")
RIGHTS = Fault(
    "wrong", "does not allow this user what locks need: SELECT, INSERT, UPDATE and DELETE on its four tables"
)
INSECURE = Fault(
    "wrong", 'accepts encrypted connections only: OPTIONS["connect_args"], such as {"ssl_ca": "/etc/ssl/db.pem"}'
)
OPTIONS = Fault("wrong", "cannot be connected to with these options")
INTERRUPTED = Fault("not_now", "was told to interrupt the request")
NO_DATABASE = Fault("wrong", "does not exist")
NO_SCHEMA = Fault("wrong", "has no such schema: make it with CREATE SCHEMA, or name another")
FULL = Fault("not_now", "has no more connections to give")
STARTING = Fault("not_now", "is starting or shutting down")
NO_ROOM = Fault("not_now", "has no disk, no memory, or no other resource left for it")
DISK = Fault("not_now", "cannot read or write its files")

#: By code, and by its first two characters: what a code is that has no line of its own.
POSTGRESQL: Mapping[str, Fault] = {
    "40001": AGAIN, "40P01": AGAIN, "23505": AGAIN, "42P07": AGAIN, "42710": AGAIN,
    "55P03": LOCKED, "57014": LOCKED,
    "42P01": NO_TABLE, "42703": NO_TABLE, "3F000": NO_SCHEMA,
    "25006": READ_ONLY,
    "42501": RIGHTS, "28": PASSWORD, "3D000": NO_DATABASE, "57P04": NO_DATABASE,
    "53": NO_ROOM, "53300": FULL,
    "54000": NO_ROOM,  # of transactions' numbers: it takes no writes before a VACUUM
    "57": STARTING, "57P01": GONE, "57P02": GONE, "57P05": GONE,
    "25P03": GONE, "25P04": GONE, "08": GONE,
    "58": DISK,
}  # fmt: skip

#: Before PostgreSQL is connected to there are no codes, and PgBouncer has one for all that it says: only words.
POSTGRESQL_WORDS: Mapping[str, Fault] = {
    "password authentication failed": PASSWORD,
    "no password supplied": PASSWORD,
    "no pg_hba.conf entry": PASSWORD,
    "no such user": PASSWORD,  # PgBouncer's words
    'role "': PASSWORD,
    "does not exist": NO_DATABASE,
    "no such database": NO_DATABASE,
    "too many clients": FULL,
    "remaining connection slots": FULL,
    "starting up": STARTING,
    "shutting down": STARTING,
    "invalid connection option": OPTIONS,
    "timeout expired": SILENT,
    "did not answer": SILENT,
}
_WITHOUT_A_CODE = ("", "08P01")

MYSQL: Mapping[int, Fault] = {
    # 3101: another member of a group of MySQL servers has changed the same row.
    1050: AGAIN, 1213: AGAIN, 1062: AGAIN, 1586: AGAIN, 1020: AGAIN, 1412: AGAIN, 3101: AGAIN,
    1205: LOCKED, 3572: LOCKED, 3024: LOCKED, 1969: LOCKED,  # 3024, 3572: MySQL; 1969: MariaDB
    1317: INTERRUPTED,
    1146: NO_TABLE, 1054: NO_TABLE,
    1290: READ_ONLY, 1792: READ_ONLY, 1836: READ_ONLY, 1874: READ_ONLY, 1036: READ_ONLY,
    3989: READ_ONLY,  # MySQL: this schema
    1047: APART,  # Galera: a node outside of the primary component, to everything
    3100: APART,  # MySQL: a group without a majority, to a COMMIT
    3032: APART,  # MySQL: offline_mode
    1045: PASSWORD, 1698: PASSWORD, 1130: PASSWORD, 1251: PASSWORD, 2059: PASSWORD,
    1862: PASSWORD, 3118: PASSWORD, 3955: PASSWORD, 4151: PASSWORD,  # 4151: MariaDB; the others: MySQL
    3159: INSECURE,  # MySQL
    1044: RIGHTS, 1142: RIGHTS, 1143: RIGHTS, 1227: RIGHTS, 1049: NO_DATABASE,
    1040: FULL, 1203: FULL, 1226: FULL,
    1053: STARTING, 1077: STARTING, 1079: STARTING, 3168: STARTING,  # 3168: MySQL
    1021: NO_ROOM, 1114: NO_ROOM, 1037: NO_ROOM, 1038: NO_ROOM, 1041: NO_ROOM, 1135: NO_ROOM, 1206: NO_ROOM,
    1637: NO_ROOM, 3170: NO_ROOM, 3985: NO_ROOM,  # 3170, 3985: MySQL
    1024: DISK, 1026: DISK, 1030: DISK, 1180: DISK, 1297: DISK, 1598: DISK,
    1152: GONE, 1158: GONE, 1159: GONE, 1160: GONE, 1161: GONE, 1184: GONE,
    2006: GONE, 2013: GONE, 1927: GONE, 3169: GONE, 4031: GONE,  # 1927: MariaDB; 3169, 4031: MySQL
}  # fmt: skip

SQLITE_WORDS: Mapping[str, Fault] = {
    "database is locked": Fault("locked", "is locked: another program keeps its write lock"),
    "UNIQUE constraint failed": AGAIN,
    "already exists": AGAIN,
    "unknown database": Fault("wrong", "has no such schema: leave it out"),
    "no such table": NO_TABLE,
    "no such column": NO_TABLE,
    "has no column": NO_TABLE,
    "readonly database": Fault("not_now", "cannot be written to"),
    "unable to open": Fault("wrong", "cannot be opened: there has to be a folder that can be written to"),
    "not a database": Fault("wrong", "is no SQLite database"),
    "is full": Fault("not_now", "has no room on its disk"),
    "disk I/O error": Fault("not_now", "cannot be read or written"),
}


def of_postgresql(code: str, words: str) -> Fault:
    said = _by_words(POSTGRESQL_WORDS, words) if code in _WITHOUT_A_CODE else UNKNOWN
    return said if said is not UNKNOWN else POSTGRESQL.get(code) or POSTGRESQL.get(code[:2], UNKNOWN)


def of_mysql(code: int, words: str) -> Fault:
    return SILENT if "timed out" in words else MYSQL.get(code, UNKNOWN)


def of_sqlite(words: str) -> Fault:
    return _by_words(SQLITE_WORDS, words)


def _by_words(known: Mapping[str, Fault], words: str) -> Fault:
    return next((fault for phrase, fault in known.items() if phrase in words), UNKNOWN)
