"""The times that every calendar of ours has: the years 1 to 9999, in microseconds from 1970 on."""

FIRST_TIME_US = -62_135_596_800_000_000
LAST_TIME_US = 253_402_300_799_999_999
DAY_US = 24 * 3600 * 1_000_000
