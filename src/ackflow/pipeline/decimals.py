"""Amounts as exact decimals, from the file to the one rounding at the end.

A number of a file has up to 16 digits before the point and 18 behind it, so that the product of any
two of them fits Spark's widest decimal. One that does not fit exactly is unreadable, never rounded.
"""

from decimal import ROUND_HALF_UP, Context, Decimal

SCALE = 18
COLUMN = f"decimal(34,{SCALE})"
SUM = f"decimal(38,{SCALE})"

# Python rounds to 28 digits unless told otherwise, which is less than one amount may have.
_CONTEXT = Context(prec=200)
_WIDTH = 100


def add(one: Decimal, other: Decimal) -> Decimal:
    return _CONTEXT.add(one, other)


def text(value: Decimal) -> str:
    """A decimal written out, never with an exponent: SQLite would read 1E-7 as the integer 1."""
    return format(value, "f")


def rounded(value: Decimal, places: int) -> Decimal:
    """Half up, away from zero."""
    return value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _CONTEXT)


def sortable(value: Decimal) -> str:
    """A text that sorts by value; SQLite's whole numbers are too short for an exact amount."""
    scaled = int(_CONTEXT.scaleb(value, SCALE))
    return f"{10**_WIDTH + scaled:0{_WIDTH + 1}d}"


def read(cell: str) -> str:
    """Spark SQL that reads a cell, as null if it is no number or does not fit exactly."""
    number = f"trim({cell})"
    behind = f"regexp_extract({number}, '[.]([0-9]*?)0*([eE]|$)', 1)"
    exponent = f"coalesce(try_cast(regexp_extract({number}, '[eE](.*)$', 1) as int), 0)"
    # Almost every cell is too short to have more digits than fit: that is cheap to see.
    short = f"(length({number}) <= {SCALE + 1} and lower({number}) not like '%e%')"
    exact = f"({short} or length({behind}) - {exponent} <= {SCALE})"
    return f"if({exact}, try_cast({number} as {COLUMN}), null)"
