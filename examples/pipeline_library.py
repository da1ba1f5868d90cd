"""A small pipeline for a library: which books are lent most often, and which fees are due.

    ackflow pipeline run --pipeline examples/pipeline_library.py --data DIR --out OUT

Each branch of the library is a client: DIR/<branch>/books.csv and DIR/<branch>/loans*.csv.
"""

from ackflow.pipeline import Pipeline, Query, Route, Table

pipeline = Pipeline(
    name="library",
    tables=[
        Table("books", ["book_id", "title"], ["book_id", "title"]),
        Table("loans", ["loan_id", "book_id", "reader", "taken_at", "fee"],
              ["book_id", "reader", "taken_at", "fee"], {"taken_at": "time", "fee": "decimal"}),
    ],
    routes=[
        Route("titles", "books", {"book_id": "book_id", "title": "title"}),
        Route("lent", "loans", {"book_id": "book_id"}, sums={"times": "1"}),
        Route("owed", "loans", {"reader": "reader"}, "fee > 0", {"fee": "fee"}),
    ],
    queries=[
        Query("most_lent", """
            select title, cast(sum(times) as bigint) as times from lent join titles using (book_id)
            group by title order by times desc, title limit 3"""),
        Query("owed", """
            select reader, round(sum(fee), 2) as fee from owed group by reader order by reader"""),
    ],
)  # fmt: skip
