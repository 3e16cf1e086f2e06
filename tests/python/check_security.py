"""A server that asks who calls: each Kafka client logs in by each mechanism and with a wrong password does not; so do the command line,
ADBC and a scrape of the metrics."""

import asyncio
import base64
import importlib.metadata
import logging
import subprocess
import urllib.error
import urllib.request

import adbc_driver_flightsql.dbapi as flightsql
import adbc_driver_manager
import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors

from basalt_server import PASSWORD, USER, expect, guarded
from compatibility import record

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
PATIENCE = 30.0


def confluent(address: str, mechanism: str, password: str) -> list[bytes]:
    """What the topic holds, once a record is written."""
    failures = []
    common = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
        "error_cb": failures.append,
    }
    topic = f"confluent-{mechanism}"
    producer = confluent_kafka.Producer(common)
    producer.produce(topic, b"value")
    while len(producer) and not failures:
        producer.poll(0.2)
    if failures:
        expect(failures[0].code(), confluent_kafka.KafkaError._AUTHENTICATION, "confluent-kafka is told why")
        producer.purge()
        return []
    consumer = confluent_kafka.Consumer({**common, "group.id": "any"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    message = consumer.poll(PATIENCE)
    consumer.close()
    return [message.value()]


class Said(logging.Handler):
    """What a client writes into its log."""

    def __init__(self):
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"


def kafka_python(address: str, mechanism: str, password: str) -> list[bytes]:
    common = {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": password,
    }
    topic = f"kafka-python-{mechanism}"
    # It tries again whatever it is told, and says what that was in its log alone.
    said = Said()
    logging.getLogger("kafka").addHandler(said)
    try:
        producer = kafka.KafkaProducer(**common, bootstrap_timeout_ms=10_000, max_block_ms=4000)
        producer.send(topic, b"value").get(PATIENCE)
    except kafka.errors.KafkaError as error:
        expect(password == PASSWORD, False, f"kafka-python is refused: {error!r}")
        expect("no such user and password" in said.text, True, "and is told why")
        return []
    finally:
        logging.getLogger("kafka").removeHandler(said)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, **common, auto_offset_reset="earliest", consumer_timeout_ms=PATIENCE * 1000)
    value = next(consumer).value
    consumer.close()
    return [value]


async def aiokafka_of(address: str, mechanism: str, password: str) -> list[bytes]:
    common = {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": password,
    }
    topic = f"aiokafka-{mechanism}"
    said = Said()
    logging.getLogger("aiokafka").addHandler(said)
    producer = aiokafka.AIOKafkaProducer(**common)
    try:
        await producer.start()
    except aiokafka.errors.KafkaError as error:
        expect(password == PASSWORD, False, f"aiokafka is refused: {error!r}")
        expect("no such user and password" in said.text, True, "and is told why")
        return []
    finally:
        logging.getLogger("aiokafka").removeHandler(said)
        if password != PASSWORD:
            await producer.stop()
    await producer.send_and_wait(topic, b"value")
    await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(topic, **common, auto_offset_reset="earliest")
    await consumer.start()
    message = await asyncio.wait_for(consumer.getone(), PATIENCE)
    await consumer.stop()
    return [message.value]


def check_kafka(address: str) -> None:
    clients = {
        "confluent-kafka": confluent,
        "kafka-python": kafka_python,
        "aiokafka": lambda *arguments: asyncio.run(aiokafka_of(*arguments)),
    }
    for name, client in clients.items():
        for mechanism in MECHANISMS:
            expect(client(address, mechanism, PASSWORD), [b"value"], f"{name} writes and reads, logged in by {mechanism}")
            expect(client(address, mechanism, "wrong"), [], f"{name} by {mechanism} with a wrong password does not")
        record(name, importlib.metadata.version(name), SASL=", ".join(MECHANISMS))
    failures = []
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "error_cb": failures.append})
    producer.produce("plain", b"value")
    expect(producer.flush(3), 1, "without logging in nothing is written")
    expect([failure.code() for failure in failures][:1], [confluent_kafka.KafkaError._ALL_BROKERS_DOWN], "since its connections are closed")
    producer.purge()


def check_command_line(server) -> None:
    expect(b"confluent-PLAIN" in server.run("topic", "list"), True, "the command line logs in")
    expect(server.sql("SELECT count(*) AS rows FROM \"aiokafka-PLAIN\""), [{"rows": 1}], "and queries")
    server.run("produce", "lines", stdin=b"one\ntwo\n")
    expect(server.run("consume", "lines", "--from", "earliest", "--to", "end"), b"one\ntwo\n", "and produces and consumes")
    login, server.login = server.login, {}
    for arguments in [["topic", "list"], ["sql", "SELECT 1"], ["produce", "lines"], ["bench", "produce", "--duration", "1"]]:
        command = [server.binary, *arguments, "--server", server.address]
        done = subprocess.run(command, input=b"x\n", capture_output=True, timeout=60)
        expect(done.returncode, 1, f"without logging in `basalt {' '.join(arguments)}` fails")
        said = done.stderr.decode()
        expect("authenticated" in said or "log in" in said, True, f"and says why: {said.strip()}")
    server.login = login | {"BASALT_PASSWORD": "wrong"}
    for arguments in [["topic", "list"], ["sql", "SELECT 1"]]:
        try:
            server.run(*arguments)
            raise AssertionError("a wrong password was taken")
        except RuntimeError as error:
            expect("log in" in str(error), True, f"with a wrong password neither: {str(error).splitlines()[0][-80:]}")
    server.login = login


def check_adbc(uri: str) -> None:
    def ask(**login: str) -> int:
        with flightsql.connect(uri, db_kwargs=login, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute('SELECT count(*) FROM "aiokafka-PLAIN"')
            return cursor.fetchone()[0]

    expect(ask(username=USER, password=PASSWORD), 1, "ADBC logs in")
    for login in [{}, {"username": USER, "password": "wrong"}]:
        try:
            ask(**login)
            raise AssertionError(f"ADBC was let in with {login}")
        except adbc_driver_manager.Error as error:
            expect("log in" in str(error) or "UNAUTHENTICATED" in str(error).upper(), True, f"ADBC with {login} is refused")


def check_http(address: str) -> None:
    def status(path: str, login: str | None) -> int:
        request = urllib.request.Request(f"http://{address}{path}")
        if login is not None:
            request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            expect(error.headers["WWW-Authenticate"], 'Basic realm="basalt"', f"{path} says how to log in")
            return error.code

    for path, login, expected in [
        ("/metrics", f"{USER}:{PASSWORD}", 200),
        ("/metrics", f"{USER}:wrong", 401),
        ("/metrics", f"nobody:{PASSWORD}", 401),
        ("/metrics", None, 401),
        ("/healthz", None, 200),
        ("/", None, 200),
    ]:
        expect(status(path, login), expected, f"{path} as {login}")


def main() -> None:
    with guarded() as server:
        check_kafka(server.address)
        check_command_line(server)
        check_adbc(server.uri)
        check_http(server.address)


if __name__ == "__main__":
    main()
