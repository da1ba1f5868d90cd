"""Exact decimal amounts, from the input file to the single rounding at the end.

A number has up to 16 digits before the decimal point and 18 after it, so that the product of any
two fits Spark's widest decimal. A number that does not fit is unreadable; it is never rounded.
"""

from decimal import ROUND_HALF_UP, Context, Decimal

SCALE = 18
COLUMN = f"decimal(34,{SCALE})"
SUM = f"decimal(38,{SCALE})"

# The default context rounds to 28 digits, fewer than one amount may have.
_CONTEXT = Context(prec=200)
_WIDTH = 100


def add(one: Decimal, other: Decimal) -> Decimal:
    return _CONTEXT.add(one, other)


def text(value: Decimal) -> str:
    """Format without an exponent: SQLite would read 1E-7 as the integer 1."""
    return format(value, "f")


def rounded(value: Decimal, places: int) -> Decimal:
    """Round half up, away from zero."""
    return value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _CONTEXT)


def sortable(value: Decimal) -> str:
    """Return a text that sorts by value; an exact amount does not fit SQLite's 64-bit integers."""
    scaled = int(_CONTEXT.scaleb(value, SCALE))
    return f"{10**_WIDTH + scaled:0{_WIDTH + 1}d}"


def parse_sql(cell: str) -> str:
    """Return Spark SQL that parses a cell: null if it is no number or does not fit exactly."""
    number = f"trim({cell})"
    fraction = f"regexp_extract({number}, '[.]([0-9]*?)0*([eE]|$)', 1)"
    exponent = f"coalesce(try_cast(regexp_extract({number}, '[eE](.*)$', 1) as int), 0)"
    # Almost every cell is too short to have more digits than fit, which is cheap to test.
    short = f"(length({number}) <= {SCALE + 1} and lower({number}) not like '%e%')"
    exact = f"({short} or length({fraction}) - {exponent} <= {SCALE})"
    return f"if({exact}, try_cast({number} as {COLUMN}), null)"
