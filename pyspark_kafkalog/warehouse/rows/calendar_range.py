"""The times that every calendar of ours has: the years 1 to 9999, in microseconds from 1970 on; and
the days of databases: PostgreSQL's has more, MariaDB's the same."""

FIRST_TIME_US = -62_135_596_800_000_000
LAST_TIME_US = 253_402_300_799_999_999
DAY_US = 24 * 3600 * 1_000_000

POSTGRESQL_DAYS = range(-2_440_588, 2_145_042_906)
"""Those that PostgreSQL has, in days from 1970 on: from 24 November 4714 before Christ, on which
Julian days are counted from, until the year 5874898."""

MARIADB_DAYS = range(FIRST_TIME_US // DAY_US, LAST_TIME_US // DAY_US + 1)
