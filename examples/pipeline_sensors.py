"""Sensors: the hottest hours of each room, and the readings above the limit of their sensor.

    ackflow pipeline run --pipeline examples/pipeline_sensors.py --data DIR --out OUT

Each building is a client: DIR/<building>/sensors.csv and DIR/<building>/readings*.jsonl.
"""

from ackflow.pipeline import Join, Pipeline, Query, Route, Table, Top, Window

pipeline = Pipeline(
    name="sensors",
    tables=[
        Table("sensors", "sensor string, room string, highest decimal(6,2)"),
        Table("readings", "sensor string, at timestamp, celsius decimal(6,2)"),
    ],
    routes=[
        Route("hourly", "readings", {"sensor": "sensor"}, "celsius is not null",
              sums={"celsius": "celsius", "readings": "1"}, window=Window("at", "1 hour", "hour")),
        Route("rooms", "sensors", {"sensor": "sensor", "room": "room"}),
        Route("too_hot", "readings", {"room": "room", "at": "at", "celsius": "celsius"},
              "celsius > highest", join=Join("sensors", ["sensor"]),
              top=Top(3, "celsius desc, at", per=["room"])),
    ],
    queries=[
        Query("hottest_hours", """
            select room, date_format(hour, 'yyyy-MM-dd HH:mm') as hour,
                round(sum(celsius) / sum(readings), 1) as celsius
            from hourly join rooms using (sensor)
            group by room, hour order by celsius desc, room, hour limit 10"""),
        Query("too_hot", """
            select room, date_format(at, 'yyyy-MM-dd HH:mm:ss') as at, celsius
            from too_hot order by room, celsius desc, at"""),
    ],
)  # fmt: skip
