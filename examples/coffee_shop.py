"""The coffee shop pipeline: five tables, four queries. `ackflow pipeline run` uses it by default.

query1: transactions of at least 75; query2: best-selling and most profitable items per month;
query3: turnover per store and half-year; query4: the three most frequent customers of each store.
"""

from ackflow.pipeline import Pipeline, Query, Route, Table

YEARS = "year(created_at) in (2024, 2025)"
OPEN = "hour(created_at) between 6 and 23"
USER = "regexp_replace(trim(user_id), '[.]0+$', '')"

pipeline = Pipeline(
    name="coffee",
    tables=[
        Table("menu_items", ["item_id", "item_name", "category", "price", "is_seasonal",
                             "available_from", "available_to"], ["item_id", "item_name"]),
        Table("stores", ["store_id", "store_name", "street", "postal_code", "city", "state",
                         "latitude", "longitude"], ["store_id", "store_name"]),
        Table("users", ["user_id", "gender", "birthdate", "registered_at"],
              ["user_id", "birthdate"]),
        Table("transactions", ["transaction_id", "store_id", "payment_method_id", "voucher_id",
                               "user_id", "original_amount", "discount_applied", "final_amount",
                               "created_at"],
              ["transaction_id", "store_id", "user_id", "final_amount", "created_at"],
              {"final_amount": "decimal", "created_at": "time"}),
        Table("transaction_items", ["transaction_id", "item_id", "quantity", "unit_price",
                                    "subtotal", "created_at"],
              ["item_id", "quantity", "subtotal", "created_at"],
              {"quantity": "decimal", "subtotal": "decimal", "created_at": "time"}),
    ],
    routes=[
        Route("menu", "menu_items", {"item_id": "item_id", "name": "item_name"}),
        Route("stores", "stores", {"store_id": "store_id", "store_name": "store_name"}),
        Route("users", "users", {"user_id": USER, "birthdate": "birthdate"}),
        Route("large", "transactions",
              {"transaction_id": "transaction_id", "final_amount": "final_amount"},
              f"{YEARS} and {OPEN} and final_amount >= 75"),
        Route("sold", "transaction_items",
              {"month": "date_format(created_at, 'yyyy-MM')", "item_id": "item_id"},
              YEARS, {"quantity": "quantity", "revenue": "subtotal"}),
        Route("turnover", "transactions",
              {"store_id": "store_id",
               "period": "concat(year(created_at), if(month(created_at) < 7, '-S1', '-S2'))"},
              f"{YEARS} and {OPEN}", {"amount": "final_amount"}),
        Route("visits", "transactions", {"store_id": "store_id", "user_id": USER},
              f"{YEARS} and {USER} <> ''", {"visits": "1"}),
    ],
    queries=[
        Query("query1", """
            select transaction_id, round(final_amount, 2) as final_amount from large
            order by transaction_id, final_amount"""),
        Query("query2", """
            with named as (
                select month, name, sum(quantity) as quantity, sum(revenue) as revenue
                from sold join menu using (item_id) group by month, name),
            placed as (
                select *, row_number() over (
                        partition by month order by quantity desc, name) as by_quantity,
                    row_number() over (
                        partition by month order by revenue desc, name) as by_revenue
                from named)
            select month, name, cast(quantity as bigint) as quantity, null as revenue
            from placed where by_quantity = 1
            union all
            select month, name, null, round(revenue, 2) from placed where by_revenue = 1
            order by month, revenue is not null"""),
        Query("query3", """
            select store_name, period, round(sum(amount), 2) as amount
            from turnover join stores using (store_id)
            group by store_name, period order by store_name, period"""),
        Query("query4", """
            with counted as (
                select store_id, user_id, cast(visits as bigint) as purchase_count from visits),
            placed as (
                select *, row_number() over (
                    partition by store_id order by purchase_count desc,
                        coalesce(try_cast(user_id as bigint), 0), user_id) as place
                from counted),
            born as (select user_id, min(birthdate) as birthdate from users group by user_id)
            select store_name, coalesce(birthdate, '') as birthdate, purchase_count
            from placed join stores using (store_id) left join born using (user_id)
            where place <= 3 order by store_name, store_id, place"""),
    ],
)  # fmt: skip
