"""Consumer groups of Kafka clients: members of each client share a topic in one group, one leaves and one dies, offsets go on where
they were, and operators see and move the group. Every record is handled once. By the classic protocol with one member of each client,
and by the consumer protocol (KIP-848) with those of the one that has it."""

import asyncio
import collections
import importlib.metadata
import json
import subprocess
import sys
import threading
import time

import aiokafka
import aiokafka.structs
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.coordinator.assignors.range
import kafka.structs
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from basalt_server import expect, serving
from compatibility import record

PARTITIONS = 6
PATIENCE = 60.0
SESSION_MS = 6000
TEXT = "handled"


class Member(threading.Thread):
    """A consumer in a thread of its own, that commits what it was given before it asks for more."""

    def __init__(self, address: str, name: str):
        super().__init__(daemon=True)
        self.address = address
        # Of the topic and of the group.
        self.name = name
        self.handled: list[tuple[int, int]] = []
        self.owned: set[int] = set()
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as failure:  # noqa: BLE001: it is told to the main thread
            self.failure = failure

    def work(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.stopping.set()
        self.join(PATIENCE)
        if self.failure:
            raise self.failure


CLASSIC = {
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": 500,
    "partition.assignment.strategy": "range",
}


class Confluent(Member):
    protocol = CLASSIC

    def work(self) -> None:
        settings = {"bootstrap.servers": self.address, "group.id": self.name, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer(settings | self.protocol)
        consumer.subscribe([self.name])
        while not self.stopping.is_set():
            messages = consumer.consume(100, 0.2)
            self.owned = {place.partition for place in consumer.assignment()}
            positions = {}
            for message in messages:
                if message.error():
                    raise AssertionError(message.error())
                self.handled.append((message.partition(), message.offset()))
                positions[message.partition()] = message.offset() + 1
            if positions:
                places = [confluent_kafka.TopicPartition(self.name, p, o, TEXT) for p, o in positions.items()]
                consumer.commit(offsets=places, asynchronous=False)
        consumer.close()
        self.owned = set()


class Consumer(Confluent):
    """By the consumer protocol."""

    protocol = {"group.protocol": "consumer"}


class ConsumerRange(Confluent):
    """The same, with the other assignor."""

    protocol = {"group.protocol": "consumer", "group.remote.assignor": "range"}


class KafkaPython(Member):
    def work(self) -> None:
        consumer = kafka.KafkaConsumer(
            self.name,
            bootstrap_servers=self.address,
            group_id=self.name,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
            partition_assignment_strategy=[kafka.coordinator.assignors.range.RangePartitionAssignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        while not self.stopping.is_set():
            polled = consumer.poll(200)
            self.owned = {place.partition for place in consumer.assignment()}
            positions = {}
            for place, messages in polled.items():
                self.handled += [(place.partition, message.offset) for message in messages]
                positions[place] = kafka.structs.OffsetAndMetadata(messages[-1].offset + 1, TEXT, -1)
            if positions:
                consumer.commit(positions)
        consumer.close()
        self.owned = set()


class Aiokafka(Member):
    def work(self) -> None:
        asyncio.run(self.consume())

    async def consume(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self.name,
            bootstrap_servers=self.address,
            group_id=self.name,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
            partition_assignment_strategy=[RangePartitionAssignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        while not self.stopping.is_set():
            polled = await consumer.getmany(timeout_ms=200)
            self.owned = {place.partition for place in consumer.assignment()}
            positions = {}
            for place, messages in polled.items():
                self.handled += [(place.partition, message.offset) for message in messages]
                positions[place] = aiokafka.structs.OffsetAndMetadata(messages[-1].offset + 1, TEXT)
            if positions:
                await consumer.commit(positions)
        await consumer.stop()
        self.owned = set()


# A member of the group that is killed: in a process of its own.
VICTIM = """
import json, sys, confluent_kafka
address, name, protocol = sys.argv[1:]
settings = {"bootstrap.servers": address, "group.id": name, "enable.auto.commit": False}
consumer = confluent_kafka.Consumer(settings | json.loads(protocol))
consumer.subscribe([name])
owned = 0
while True:
    consumer.consume(1, 0.1)
    if owned != (owned := len(consumer.assignment())):
        print(owned, flush=True)
"""


def until(what: str, is_so) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.05)
    print(f"ok: {what}")


def produce(address: str, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in range(count):
        producer.produce(topic, b"value %d" % number, partition=number % PARTITIONS)
    expect(producer.flush(PATIENCE), 0, f"{count} records are produced")


def share(members: list[Member]) -> bool:
    """Whether every partition has one owner and every member one partition at least."""
    for member in members:
        if member.failure:
            raise member.failure
    owned = [partition for member in members for partition in member.owned]
    return sorted(owned) == list(range(PARTITIONS)) and all(member.owned for member in members)


def total(members: list[Member]) -> int:
    return sum(len(member.handled) for member in members)


def check_handled(members: list[Member], count: int) -> None:
    """All records of the topic so far, each once."""
    until(f"{count} records are handled", lambda: total(members) >= count)
    handled = collections.Counter(place for member in members for place in member.handled)
    expected = {(number % PARTITIONS, number // PARTITIONS) for number in range(count)}
    expect(set(handled) == expected, True, "every record is handled")
    expect([place for place, times in handled.items() if times > 1], [], "none is handled twice")


def check_operators(server, group: str, members: int) -> None:
    settings = {"bootstrap.servers": server.address}
    admin = confluent_kafka.admin.AdminClient(settings)
    listed = {one.group_id for one in admin.list_consumer_groups().result(PATIENCE).valid}
    expect(group in listed, True, "confluent-kafka lists the group")
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE)
    expect(len(described.members), members, "confluent-kafka: members of the group")
    owned = [place.partition for member in described.members for place in member.assignment.topic_partitions]
    expect(sorted(owned), list(range(PARTITIONS)), "confluent-kafka: what the members have")
    client = kafka.KafkaAdminClient(bootstrap_servers=server.address)
    asked = getattr(client, "list_group_offsets", None)

    def texts() -> dict[int, str]:
        offsets = asked([group])[group] if asked else client.list_consumer_group_offsets(group)
        # confluent-kafka sends a NUL behind its text.
        return {place.partition: at.metadata.rstrip("\0") for place, at in offsets.items()}

    # What is handled is committed soon after.
    until("kafka-python: texts with the offsets", lambda: texts() == {partition: TEXT for partition in range(PARTITIONS)})
    client.close()
    query = f"SELECT max(lag_records) AS lag, count(*) AS partitions FROM sys.groups WHERE group_name = '{group}'"
    until("SQL: where the group stands", lambda: server.sql(query) == [{"lag": 0, "partitions": PARTITIONS}])


def check_rewound_while_committing(server, topic: str) -> None:
    """A client with its defaults commits where it is when it is put out of the group: that must not undo where it was moved to."""

    async def work() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=server.address,
            group_id="rewound",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        seen = []

        async def consume(count: int) -> None:
            while len(seen) < count:
                polled = await consumer.getmany(timeout_ms=200)
                seen.extend(message for messages in polled.values() for message in messages)

        await asyncio.wait_for(consume(1200), PATIENCE)
        await consumer.commit()
        seek = ["group", "seek", "rewound", topic, "--to", "earliest"]
        await asyncio.to_thread(server.run, *seek)
        await asyncio.wait_for(consume(2400), PATIENCE)
        await consumer.stop()
        print("ok: a client that commits by itself reads again from where its group was moved to")

    asyncio.run(work())


def check_sharing(server, name: str, kinds: list[type[Member]], protocol: dict) -> None:
    server.run("topic", "create", name, "--partitions", str(PARTITIONS))
    members = [kind(server.address, name) for kind in kinds]
    for member in members:
        member.start()
    until(f"{name}: three members share the topic", lambda: share(members))
    produce(server.address, name, 600)
    check_handled(members, 600)
    check_operators(server, name, 3)

    left, *others = members
    left.stop()
    until("the others take over what one left", lambda: share(others))
    produce(server.address, name, 600)
    check_handled(members, 1200)

    command = [sys.executable, "-c", VICTIM, server.address, name, json.dumps(protocol)]
    victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while int(victim.stdout.readline()) != 2:
        pass
    print("ok: a fourth has its part")
    victim.kill()
    victim.wait()
    until("and what it had is theirs when its session is over", lambda: share(others))

    server.run("group", "seek", name, name, "--to", "earliest")
    again = total(members) + 1200
    until("a group that runs is moved to the beginning", lambda: total(members) >= again)
    for member in others:
        member.stop()


def main() -> None:
    with serving("groups.consumer_session_ms=6000", "groups.consumer_heartbeat_ms=500") as server:
        check_sharing(server, "classic", [Confluent, KafkaPython, Aiokafka], CLASSIC)
        check_sharing(server, "uniform", [Consumer] * 3, Consumer.protocol)
        check_sharing(server, "range", [ConsumerRange] * 3, ConsumerRange.protocol)
        check_rewound_while_committing(server, "classic")
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": server.address})
        for group in ["classic", "uniform", "range", "rewound"]:
            admin.delete_consumer_groups([group])[group].result(PATIENCE)
        expect(server.sql("SELECT * FROM sys.groups"), [], "a group without members is deleted")
        record("confluent-kafka", importlib.metadata.version("confluent-kafka"), groups="range, KIP-848 (uniform, range)")
        record("kafka-python", importlib.metadata.version("kafka-python"), groups="range")
        record("aiokafka", importlib.metadata.version("aiokafka"), groups="range")


if __name__ == "__main__":
    main()
