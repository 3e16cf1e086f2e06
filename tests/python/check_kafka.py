"""Kafka clients: every codec, headers, null and empty values, records of 1 byte and 8 MiB; written by each client, read by all of
them, by offset and by time, hot, half cold and cold; topics made, described, altered and deleted;
transactions."""

import asyncio
import dataclasses
import importlib.metadata
import time

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin

from basalt_server import expect, serving
from compatibility import record

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
MAX_BYTES = 16 << 20
START_MS = 1_700_000_000_000
PATIENCE = 60.0


# Every third transaction is aborted, the first one among them; the last is not, and commits its number as an offset of a group.
TRANSACTIONS = 9


def transacted(number: int, part: int) -> bytes:
    return b"transaction %d part %d" % (number, part)


COMMITTED = [transacted(number, part) for number in range(TRANSACTIONS) if number % 3 for part in range(10)]


@dataclasses.dataclass(frozen=True)
class Record:
    """A record as every client can say it. Offsets are its place in a list."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def records() -> list[Record]:
    special = [
        (b"k", b"v", ()),
        (None, b"v", ()),
        (b"k", None, ()),
        (b"", b"", ()),
        (None, b"\x00", (("h", b"1"), ("h", b"2"), ("i", b""))),
        (b"k", b"x" * (8 << 20), ()),
    ]
    plain = [(str(n).encode(), b"value %d" % n, ()) for n in range(500)]
    return [Record(*parts, START_MS + 10 * n) for n, parts in enumerate(special + plain)]


RECORDS = records()
SEEKS = [0, 4, 5, 6, 300, len(RECORDS) - 1]
# Each topic is written once, cooled, written again, and cooled again.
COPIES = {"hot": 1, "half cold": 2, "cold": 2}


class Confluent:
    name = "confluent-kafka"
    administers = "create, describe, alter, delete"

    def __init__(self, address: str):
        self.common = {"bootstrap.servers": address}

    def produce(self, topic: str, codec: str, first: int) -> None:
        producer = confluent_kafka.Producer(
            {
                **self.common,
                "compression.type": codec,
                "enable.idempotence": True,
                "message.max.bytes": MAX_BYTES,
                "linger.ms": 5,
            }
        )
        failures = []
        for record in RECORDS:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=0,
                headers=list(record.headers),
                timestamp=record.timestamp_ms,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
            producer.poll(0)
        expect(producer.flush(PATIENCE), 0, f"{self.name} leaves nothing unsent to {topic}")
        expect(failures, [], f"{self.name} is refused nothing in {topic}")

    def consumer(self) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                **self.common,
                "group.id": "unused",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": MAX_BYTES,
            }
        )

    def consume(self, topic: str, offset: int, end: int) -> list[Record]:
        consumer = self.consumer()
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
        found = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < end - offset and time.monotonic() < deadline:
            for message in consumer.consume(500, 1.0):
                if message.error():
                    raise AssertionError(f"{self.name}: {message.error()}")
                expect_quietly(message.offset(), offset + len(found), "offset")
                headers = tuple(message.headers() or ())
                found.append(Record(message.key(), message.value(), headers, message.timestamp()[1]))
        consumer.close()
        return found

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        consumer = self.consumer()
        asked = confluent_kafka.TopicPartition(topic, 0, timestamp_ms)
        [found] = consumer.offsets_for_times([asked], PATIENCE)
        consumer.close()
        return None if found.offset == confluent_kafka.OFFSET_END else found.offset

    def ends(self, topic: str) -> tuple[int, int]:
        consumer = self.consumer()
        ends = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), PATIENCE)
        consumer.close()
        return ends

    def administer(self) -> None:
        admin = confluent_kafka.admin.AdminClient(self.common)
        topic = "made-by-confluent"
        new = confluent_kafka.admin.NewTopic(topic, 3, 1, config={"retention.ms": "3600000"})
        admin.create_topics([new])[topic].result(PATIENCE)
        described = admin.list_topics(topic, PATIENCE).topics[topic]
        expect(len(described.partitions), 3, f"{self.name}: partitions of a topic it made")
        resource = confluent_kafka.admin.ConfigResource("topic", topic)
        config = admin.describe_configs([resource])[resource].result(PATIENCE)
        expect(config["retention.ms"].value, "3600000", f"{self.name}: a setting it gave")
        expect(config["cleanup.policy"].value, "delete", f"{self.name}: a setting it did not give")
        entry = confluent_kafka.admin.ConfigEntry(
            "retention.bytes", "1000000", incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
        )
        changed = confluent_kafka.admin.ConfigResource("topic", topic, incremental_configs=[entry])
        admin.incremental_alter_configs([changed])[changed].result(PATIENCE)
        config = admin.describe_configs([resource])[resource].result(PATIENCE)
        expect(config["retention.bytes"].value, "1000000", f"{self.name}: a setting it changed")
        admin.delete_topics([topic])[topic].result(PATIENCE)
        expect(topic in admin.list_topics(timeout=PATIENCE).topics, False, f"{self.name}: its topic is gone")

    def transact(self, topic: str) -> None:
        producer = confluent_kafka.Producer({**self.common, "transactional.id": f"{topic}-id"})
        producer.init_transactions(PATIENCE)
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            for part in range(10):
                producer.produce(topic, transacted(number, part), partition=0)
            if number % 3 == 0:
                # So that there is something to abort.
                producer.flush(PATIENCE)
                producer.abort_transaction(PATIENCE)
            else:
                place = confluent_kafka.TopicPartition(topic, 0, number)
                group = confluent_kafka.Consumer({**self.common, "group.id": topic})
                producer.send_offsets_to_transaction([place], group.consumer_group_metadata(), PATIENCE)
                group.close()
                producer.commit_transaction(PATIENCE)

    def committed(self, topic: str) -> tuple[list[bytes], int]:
        consumer = confluent_kafka.Consumer({**self.common, "group.id": topic, "isolation.level": "read_committed", "enable.auto.commit": False})
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        values = []
        deadline = time.monotonic() + PATIENCE
        while len(values) < len(COMMITTED) and time.monotonic() < deadline:
            values += [message.value() for message in consumer.consume(100, 1.0)]
        [at] = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], PATIENCE)
        consumer.close()
        return values, at.offset

    def commit(self, topic: str) -> int:
        settings = {**self.common, "group.id": "confluent-group", "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer(settings)
        place = confluent_kafka.TopicPartition(topic, 0, 7)
        consumer.assign([place])
        consumer.commit(offsets=[place], asynchronous=False)
        [committed] = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], PATIENCE)
        consumer.close()
        return committed.offset


class KafkaPython:
    name = "kafka-python"
    administers = "create, describe, delete"

    def __init__(self, address: str):
        self.common = {"bootstrap_servers": address}

    def produce(self, topic: str, codec: str, first: int) -> None:
        producer = kafka.KafkaProducer(
            **self.common,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
            acks="all",
            max_request_size=MAX_BYTES,
            linger_ms=5,
        )
        sent = [
            producer.send(
                topic,
                record.value,
                record.key,
                partition=0,
                headers=list(record.headers),
                timestamp_ms=record.timestamp_ms,
            )
            for record in RECORDS
        ]
        offsets = [future.get(PATIENCE).offset for future in sent]
        producer.close()
        expect(offsets, list(range(first, first + len(RECORDS))), f"{self.name}: offsets in {topic}")

    def consumer(self) -> kafka.KafkaConsumer:
        return kafka.KafkaConsumer(
            **self.common,
            group_id=None,
            max_partition_fetch_bytes=MAX_BYTES,
            consumer_timeout_ms=int(PATIENCE * 1000),
        )

    def consume(self, topic: str, offset: int, end: int) -> list[Record]:
        consumer = self.consumer()
        place = kafka.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, offset)
        found = []
        for message in consumer:
            expect_quietly(message.offset, offset + len(found), "offset")
            headers = tuple(message.headers)
            found.append(Record(message.key, message.value, headers, message.timestamp))
            if len(found) == end - offset:
                break
        consumer.close()
        return found

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        consumer = self.consumer()
        place = kafka.TopicPartition(topic, 0)
        found = consumer.offsets_for_times({place: timestamp_ms})[place]
        consumer.close()
        return found and found.offset

    def ends(self, topic: str) -> tuple[int, int]:
        consumer = self.consumer()
        place = kafka.TopicPartition(topic, 0)
        ends = consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
        consumer.close()
        return ends

    def administer(self) -> None:
        admin = kafka.KafkaAdminClient(**self.common)
        topic = "made-by-kafka-python"
        admin.create_topics([kafka.admin.NewTopic(topic, 2, 1)])
        [described] = admin.describe_topics([topic])
        expect(len(described["partitions"]), 2, f"{self.name}: partitions of a topic it made")
        admin.delete_topics([topic])
        expect(topic in admin.list_topics(), False, f"{self.name}: its topic is gone")
        admin.close()

    def transact(self, topic: str) -> None:
        producer = kafka.KafkaProducer(**self.common, transactional_id=f"{topic}-id")
        producer.init_transactions()
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            sent = [producer.send(topic, transacted(number, part), partition=0) for part in range(10)]
            for future in sent:
                future.get(PATIENCE)
            if number % 3 == 0:
                producer.abort_transaction()
            else:
                place = {kafka.TopicPartition(topic, 0): kafka.OffsetAndMetadata(number, "", -1)}
                producer.send_offsets_to_transaction(place, topic)
                producer.commit_transaction()
        producer.close()

    def committed(self, topic: str) -> tuple[list[bytes], int]:
        consumer = kafka.KafkaConsumer(
            **self.common,
            group_id=topic,
            isolation_level="read_committed",
            enable_auto_commit=False,
            consumer_timeout_ms=int(PATIENCE * 1000),
        )
        place = kafka.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        values = []
        for message in consumer:
            values.append(message.value)
            if len(values) == len(COMMITTED):
                break
        at = consumer.committed(place)
        consumer.close()
        return values, at

    def commit(self, topic: str) -> int:
        consumer = kafka.KafkaConsumer(**self.common, group_id="kafka-python-group", enable_auto_commit=False)
        place = kafka.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.commit({place: kafka.OffsetAndMetadata(7, "", -1)})
        committed = consumer.committed(place)
        consumer.close()
        return committed


class Aiokafka:
    name = "aiokafka"
    administers = "create, describe, delete"

    def __init__(self, address: str):
        self.common = {"bootstrap_servers": address}

    def produce(self, topic: str, codec: str, first: int) -> None:
        asyncio.run(self._produce(topic, codec, first))

    async def _produce(self, topic: str, codec: str, first: int) -> None:
        producer = aiokafka.AIOKafkaProducer(
            **self.common,
            compression_type=None if codec == "none" else codec,
            max_request_size=MAX_BYTES,
            enable_idempotence=True,
            acks="all",
        )
        await producer.start()
        sent = [
            await producer.send(
                topic,
                record.value,
                record.key,
                partition=0,
                headers=list(record.headers),
                timestamp_ms=record.timestamp_ms,
            )
            for record in RECORDS
        ]
        offsets = [(await future).offset for future in sent]
        await producer.stop()
        expect(offsets, list(range(first, first + len(RECORDS))), f"{self.name}: offsets in {topic}")

    def _with_consumer(self, work, **settings):
        async def run():
            consumer = aiokafka.AIOKafkaConsumer(
                **self.common, max_partition_fetch_bytes=MAX_BYTES, enable_auto_commit=False, **settings
            )
            await consumer.start()
            try:
                return await work(consumer)
            finally:
                await consumer.stop()

        return asyncio.run(run())

    def consume(self, topic: str, offset: int, end: int) -> list[Record]:
        async def work(consumer):
            place = aiokafka.TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, offset)
            found = []
            while len(found) < end - offset:
                message = await asyncio.wait_for(consumer.getone(), PATIENCE)
                expect_quietly(message.offset, offset + len(found), "offset")
                found.append(Record(message.key, message.value, tuple(message.headers), message.timestamp))
            return found

        return self._with_consumer(work)

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        async def work(consumer):
            place = aiokafka.TopicPartition(topic, 0)
            found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
            return found and found.offset

        return self._with_consumer(work)

    def ends(self, topic: str) -> tuple[int, int]:
        async def work(consumer):
            place = aiokafka.TopicPartition(topic, 0)
            begins = await consumer.beginning_offsets([place])
            ends = await consumer.end_offsets([place])
            return begins[place], ends[place]

        return self._with_consumer(work)

    def administer(self) -> None:
        async def run():
            admin = aiokafka.admin.AIOKafkaAdminClient(**self.common)
            await admin.start()
            topic = "made-by-aiokafka"
            await admin.create_topics([aiokafka.admin.NewTopic(topic, 2, 1)])
            [described] = await admin.describe_topics([topic])
            expect(len(described["partitions"]), 2, f"{self.name}: partitions of a topic it made")
            await admin.delete_topics([topic])
            expect(topic in await admin.list_topics(), False, f"{self.name}: its topic is gone")
            await admin.close()

        asyncio.run(run())

    def transact(self, topic: str) -> None:
        asyncio.run(self._transact(topic))

    async def _transact(self, topic: str) -> None:
        producer = aiokafka.AIOKafkaProducer(**self.common, transactional_id=f"{topic}-id")
        await producer.start()
        for number in range(TRANSACTIONS):
            await producer.begin_transaction()
            for part in range(10):
                await producer.send_and_wait(topic, transacted(number, part), partition=0)
            if number % 3 == 0:
                await producer.abort_transaction()
            else:
                await producer.send_offsets_to_transaction({aiokafka.TopicPartition(topic, 0): number}, topic)
                await producer.commit_transaction()
        await producer.stop()

    def committed(self, topic: str) -> tuple[list[bytes], int]:
        async def work(consumer):
            place = aiokafka.TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 0)
            values = []
            while len(values) < len(COMMITTED):
                values.append((await asyncio.wait_for(consumer.getone(), PATIENCE)).value)
            return values, await consumer.committed(place)

        return self._with_consumer(work, group_id=topic, isolation_level="read_committed")

    def commit(self, topic: str) -> int:
        async def work(consumer):
            place = aiokafka.TopicPartition(topic, 0)
            consumer.assign([place])
            await consumer.commit({place: 7})
            return await consumer.committed(place)

        return self._with_consumer(work, group_id="aiokafka-group")


def expect_quietly(found, expected, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: found {found!r}, expected {expected!r}")


def check_reading(client, topic: str, temperature: str) -> None:
    """From the beginning; what the client wrote itself uncompressed, and by the last codec, also from other offsets."""
    own = topic in [f"{client.name}-{codec}" for codec in (CODECS[0], CODECS[-1])]
    copies = COPIES[temperature]
    offsets = SEEKS if own else SEEKS[:1]
    if own and copies == 2:
        offsets = [*offsets, len(RECORDS), len(RECORDS) + 5]
    for offset in offsets:
        expected = (RECORDS * copies)[offset:]
        found = client.consume(topic, offset, offset + len(expected))
        differing = [n for n, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]]
        expect_quietly((len(found), differing), (len(expected), []), f"{client.name}: {topic} from {offset}")
    print(f"ok: {client.name} reads {topic}, {temperature}, from {offsets}")


def check_times(client, topic: str, temperature: str) -> None:
    expect_quietly(client.ends(topic), (0, COPIES[temperature] * len(RECORDS)), f"{client.name}: ends of {topic}")
    for timestamp_ms, offset in [
        (0, 0),
        (START_MS, 0),
        (START_MS + 1, 1),
        (START_MS + 2990, 299),
        (START_MS + 2991, 300),
        (START_MS + 10 * len(RECORDS), None),
    ]:
        expect_quietly(client.offset_at(topic, timestamp_ms), offset, f"{client.name}: {topic} at {timestamp_ms}")
    print(f"ok: {client.name} finds times in {topic}, {temperature}")


def check_transactions(server, clients) -> None:
    topics = [f"transactions-{client.name}" for client in clients]
    for client, topic in zip(clients, topics):
        server.run("topic", "create", topic)
        client.transact(topic)
    for temperature in ["hot", "cold"]:
        for topic in topics:
            for client in clients:
                found = client.committed(topic)
                expect_quietly(found, (COMMITTED, TRANSACTIONS - 1), f"{client.name}: what is committed in {topic}, {temperature}")
            print(f"ok: all read what is committed in {topic}, {temperature}")
            expect(server.sql(f'SELECT count(*) AS rows FROM "{topic}"'), [{"rows": len(COMMITTED)}], f"so does SQL, {temperature}")
            server.run("topic", "cool", topic, "--wait")


def main() -> None:
    with serving() as server:
        clients = [Confluent(server.address), KafkaPython(server.address), Aiokafka(server.address)]
        topics = []
        for client in clients:
            for codec in CODECS:
                topic = f"{client.name}-{codec}"
                client.produce(topic, codec, 0)
                topics.append(topic)
        for temperature in COPIES:
            if temperature != "hot":
                for topic in topics:
                    server.run("topic", "cool", topic, "--wait")
            if temperature == "half cold":
                for client in clients:
                    for codec in CODECS:
                        client.produce(f"{client.name}-{codec}", codec, len(RECORDS))
            for topic in topics:
                for client in clients:
                    # What differs between half and all cold is not who wrote it.
                    if temperature != "half cold" or topic.startswith(client.name):
                        check_reading(client, topic, temperature)
            for client in clients:
                check_times(client, topics[0], temperature)
                check_times(client, topics[-1], temperature)
        check_transactions(server, clients)
        for client in clients:
            client.administer()
            expect(client.commit(topics[0]), 7, f"{client.name}: an offset it committed")
            record(
                client.name,
                importlib.metadata.version(client.name),
                codecs=", ".join(CODECS),
                records="null, empty, repeated headers, 1 byte to 8 MiB",
                where=", ".join(COPIES),
                offsets="seek, commit",
                times="yes",
                idempotent="yes",
                transactions="commit, abort, offsets",
                administration=client.administers,
            )


if __name__ == "__main__":
    main()
