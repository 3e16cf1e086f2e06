"""quixstreams over the topic `flights`: flights and summed delay of each carrier, a record in the topic `delays` for each flight. Each is
there exactly once, however often the program is killed: state, output and offsets are committed together, and the state comes back from
its changelog, which is a compacted topic.

    ADDRESS=127.0.0.1:9092 python delays.py"""

import os

from quixstreams import Application

app = Application(
    broker_address=os.environ["ADDRESS"],
    consumer_group="delays",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=1.0,
    state_dir="state",
)
flights = app.topic("flights", value_deserializer="json")
delays = app.topic("delays", value_serializer="json")


def add(flight, state):
    n = state.get("n", 0) + 1
    delay = state.get("delay", 0) + (flight.get("dep_delay") or 0)
    state.set("n", n)
    state.set("delay", delay)
    return {"carrier": flight["carrier"], "n": n, "delay": delay}


app.dataframe(flights).group_by("carrier").apply(add, stateful=True).to_topic(delays)

if __name__ == "__main__":
    app.run()
