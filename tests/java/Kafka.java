import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

/**
 * Apache Kafka's own client against a server: `write`, `read` what was written (hot, half cold, cold), `groups`, `transactions`, `committed` of
 * what those wrote, `admin`. Its settings are
 * its defaults, but for sizes.
 */
public class Kafka {
    static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    static final long START_MS = 1_700_000_000_000L;
    static final int MAX_BYTES = 16 << 20;
    static final Duration PATIENCE = Duration.ofSeconds(60);
    static String address;

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        switch (arguments[1]) {
            case "write" -> write(Integer.parseInt(arguments[2]));
            case "read" -> read(arguments[2], Integer.parseInt(arguments[3]));
            case "groups" -> groups(arguments[2]);
            case "transactions" -> transactions();
            case "committed" -> committed(arguments[2]);
            case "admin" -> admin();
            default -> throw new IllegalArgumentException(arguments[1]);
        }
    }

    static void expect(Object found, Object expected, String what) {
        if (!Objects.equals(found, expected)) {
            throw new AssertionError(what + ": found " + found + ", expected " + expected);
        }
        System.out.println("ok: " + what);
    }

    static Map<String, Object> with(Object... pairs) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", address);
        String mechanism = System.getenv("SASL_MECHANISM");
        if (mechanism != null) {
            String module = mechanism.equals("PLAIN") ? "plain.Plain" : "scram.Scram";
            settings.put("security.protocol", "SASL_PLAINTEXT");
            settings.put("sasl.mechanism", mechanism);
            settings.put("sasl.jaas.config", "org.apache.kafka.common.security." + module + "LoginModule required username=\""
                + System.getenv("SASL_USER") + "\" password=\"" + System.getenv("SASL_PASSWORD") + "\";");
        }
        for (int i = 0; i < pairs.length; i += 2) {
            settings.put((String) pairs[i], pairs[i + 1]);
        }
        return settings;
    }

    static byte[] bytes(String text) {
        return text.getBytes();
    }

    record Sent(byte[] key, byte[] value, List<Header> headers) {}

    /** The special cases first, then plain ones. */
    static List<Sent> records() {
        byte[] large = new byte[8 << 20];
        Arrays.fill(large, (byte) 'x');
        List<Header> headers = List.of(
            new RecordHeader("h", bytes("1")), new RecordHeader("h", bytes("2")), new RecordHeader("n", null));
        List<Sent> records = new ArrayList<>(List.of(
            new Sent(bytes("k"), bytes("v"), List.of()),
            new Sent(null, bytes("v"), List.of()),
            new Sent(bytes("k"), null, List.of()),
            new Sent(new byte[0], new byte[0], List.of()),
            new Sent(null, new byte[1], headers),
            new Sent(bytes("k"), large, List.of())));
        for (int n = 0; n < 500; n++) {
            records.add(new Sent(bytes("" + n), bytes("value " + n), List.of()));
        }
        return records;
    }

    /** After so many copies that are there already. */
    static void write(int copies) throws Exception {
        List<Sent> records = records();
        long first = (long) copies * records.size();
        for (String codec : CODECS) {
            var settings = with("compression.type", codec, "max.request.size", MAX_BYTES, "buffer.memory", 4L * MAX_BYTES);
            try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                List<java.util.concurrent.Future<RecordMetadata>> sent = new ArrayList<>();
                for (int n = 0; n < records.size(); n++) {
                    Sent record = records.get(n);
                    sent.add(producer.send(new ProducerRecord<>(
                        "java-" + codec, 0, START_MS + 10L * n, record.key(), record.value(), record.headers())));
                }
                for (int n = 0; n < sent.size(); n++) {
                    RecordMetadata stored = sent.get(n).get(60, TimeUnit.SECONDS);
                    if (stored.offset() != first + n) {
                        throw new AssertionError(codec + ": record " + n + " is at " + stored.offset());
                    }
                }
            }
            System.out.println("ok: written with " + codec);
        }
    }

    static KafkaConsumer<byte[], byte[]> consumer(Object... pairs) {
        var settings = with("max.partition.fetch.bytes", MAX_BYTES, "fetch.max.bytes", 4 * MAX_BYTES);
        settings.putAll(with(pairs));
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void read(String temperature, int copies) {
        List<Sent> one = records();
        List<Sent> records = new ArrayList<>();
        for (int copy = 0; copy < copies; copy++) {
            records.addAll(one);
        }
        try (var consumer = consumer()) {
            for (String codec : CODECS) {
                var place = new TopicPartition("java-" + codec, 0);
                consumer.assign(List.of(place));
                for (int from : new int[] {0, 5, 300}) {
                    consumer.seek(place, from);
                    int next = from;
                    long deadline = System.nanoTime() + PATIENCE.toNanos();
                    while (next < records.size() && System.nanoTime() < deadline) {
                        for (var record : consumer.poll(Duration.ofMillis(500))) {
                            Sent sent = records.get(next);
                            boolean same = record.offset() == next
                                && record.timestamp() == START_MS + 10L * (next % one.size())
                                && Arrays.equals(record.key(), sent.key())
                                && Arrays.equals(record.value(), sent.value())
                                && Arrays.asList(record.headers().toArray()).equals(sent.headers());
                            if (!same) {
                                throw new AssertionError(place + " at " + next + ": " + record);
                            }
                            next++;
                        }
                    }
                    expect(next, records.size(), place + " from " + from + ", " + temperature);
                }
                var asked = Map.of(place, START_MS + 2_991);
                expect(consumer.offsetsForTimes(asked).get(place).offset(), 300L, place + " by time");
                expect(consumer.endOffsets(List.of(place)).get(place), (long) records.size(), "end of " + place);
            }
        }
    }

    /** One turn of a member: what it is given, committed. */
    static int turn(KafkaConsumer<byte[], byte[]> consumer) {
        var polled = consumer.poll(Duration.ofMillis(100));
        if (!polled.isEmpty()) {
            consumer.commitSync(PATIENCE);
        }
        return polled.count();
    }

    /** Two members share a topic, by the protocol of that name. */
    static void groups(String protocol) throws Exception {
        String topic = "grouped-" + protocol;
        String group = "java-" + protocol;
        Object[] own = switch (protocol) {
            case "classic" -> new Object[] {"session.timeout.ms", 6000, "heartbeat.interval.ms", 300,
                "partition.assignment.strategy", CooperativeStickyAssignor.class.getName()};
            default -> new Object[] {"group.protocol", protocol};
        };
        try (var admin = Admin.create(with())) {
            admin.createTopics(List.of(new NewTopic(topic, 4, (short) 1))).all().get();
            try (var producer = new KafkaProducer<>(with(), new ByteArraySerializer(), new ByteArraySerializer())) {
                for (int n = 0; n < 1000; n++) {
                    producer.send(new ProducerRecord<>(topic, n % 4, null, bytes("" + n)));
                }
            }
            Object[] settings = Stream.concat(Stream.of(own), Stream.of(
                "group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", "false")).toArray();
            var first = consumer(settings);
            var second = consumer(Stream.concat(Stream.of(settings), Stream.of("group.instance.id", "static")).toArray());
            first.subscribe(List.of(topic));
            second.subscribe(List.of(topic));
            int seen = 0;
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            while ((seen < 1000 || first.assignment().size() != 2 || second.assignment().size() != 2)
                    && System.nanoTime() < deadline) {
                seen += turn(first) + turn(second);
            }
            expect(seen, 1000, "two members handle every record once, by the protocol " + protocol);
            expect(first.assignment().size() + second.assignment().size(), 4, "each partition has one owner");

            var described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            expect(described.members().size(), 2, "the group is described");
            expect(described.groupState().toString(), "Stable", "its state");
            expect(described.type().toString().toLowerCase(), protocol, "its protocol");
            int generation = first.groupMetadata().generationId();
            // A static member restarts within its session: nobody notices.
            var owned = second.assignment();
            second.close(CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP));
            second = consumer(Stream.concat(Stream.of(settings), Stream.of("group.instance.id", "static")).toArray());
            second.subscribe(List.of(topic));
            while (second.assignment().isEmpty() && System.nanoTime() < deadline) {
                turn(first);
                turn(second);
            }
            expect(second.assignment(), owned, "a static member has back what it had");
            expect(first.groupMetadata().generationId(), generation, "without another generation");

            var offsets = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            expect(offsets.values().stream().mapToLong(OffsetAndMetadata::offset).sum(), 1000L, "offsets of the group");
            first.close();
            second.close();
            admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all().get();
            var place = new TopicPartition(topic, 0);
            admin.alterConsumerGroupOffsets(group, Map.of(place, new OffsetAndMetadata(7, "by hand"))).all().get();
            var altered = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(place);
            expect(altered, new OffsetAndMetadata(7, Optional.empty(), "by hand"), "an offset set by an operator");
            admin.deleteConsumerGroupOffsets(group, Set.of(place)).all().get();
            expect(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().size(), 3, "and forgotten");
            var listed = admin.listGroups().all().get().stream().map(GroupListing::groupId).toList();
            expect(listed.contains(group), true, "the group is listed");
            admin.deleteConsumerGroups(List.of(group)).all().get();
            listed = admin.listGroups().all().get().stream().map(GroupListing::groupId).toList();
            expect(listed.contains(group), false, "and not when it was deleted");
        }
    }

    static KafkaProducer<byte[], byte[]> transactional(String id) {
        var producer = new KafkaProducer<>(
            with("transactional.id", id), new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        return producer;
    }

    /** Values of a topic's records in order, of one partition. */
    static List<String> values(String topic, String isolation, int count) {
        try (var consumer = consumer("isolation.level", isolation)) {
            var place = new TopicPartition(topic, 0);
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            List<String> values = new ArrayList<>();
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            while (consumer.position(place) < end && System.nanoTime() < deadline) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    values.add(new String(record.value()));
                }
            }
            return values;
        }
    }

    /** Consume, transform, produce, 30 times: every third is aborted and done again. */
    static void transactions() throws Exception {
        try (var admin = Admin.create(with())) {
            admin.createTopics(List.of(
                new NewTopic("txn-in", 1, (short) 1), new NewTopic("txn-out", 1, (short) 1))).all().get();
            try (var producer = new KafkaProducer<>(with(), new ByteArraySerializer(), new ByteArraySerializer())) {
                for (int n = 0; n < 300; n++) {
                    producer.send(new ProducerRecord<>("txn-in", bytes("" + n)));
                }
            }
            var consumer = consumer("group.id", "txn", "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                "isolation.level", "read_committed", "max.poll.records", 10);
            consumer.subscribe(List.of("txn-in"));
            var producer = transactional("java-txn");
            int done = 0;
            int turn = 0;
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            while (done < 300 && System.nanoTime() < deadline) {
                var polled = consumer.poll(Duration.ofMillis(200));
                if (polled.isEmpty()) {
                    continue;
                }
                turn++;
                boolean aborts = turn % 3 == 0;
                producer.beginTransaction();
                for (var record : polled) {
                    String value = new String(record.value());
                    producer.send(new ProducerRecord<>("txn-out", bytes(aborts ? "void " + value : value)));
                }
                var place = new TopicPartition("txn-in", 0);
                long next = consumer.position(place);
                producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(next)), consumer.groupMetadata());
                if (aborts) {
                    producer.abortTransaction();
                    long from = consumer.committed(Set.of(place)).get(place).offset();
                    consumer.seek(place, from);
                } else {
                    producer.commitTransaction();
                    done += polled.count();
                }
            }
            expect(done, 300, "records are handled in transactions");
            consumer.close();
            var offset = admin.listConsumerGroupOffsets("txn").partitionsToOffsetAndMetadata().get();
            expect(offset.get(new TopicPartition("txn-in", 0)).offset(), 300L, "the group's offset is that of the transactions");

            producer.beginTransaction();
            producer.send(new ProducerRecord<>("txn-out", bytes("void at last"))).get();
            var listed = admin.listTransactions().all().get();
            expect(listed.stream().map(TransactionListing::transactionalId).toList(), List.of("java-txn"), "transactions are listed");
            var described = admin.describeTransactions(List.of("java-txn")).all().get().get("java-txn");
            expect(described.state(), TransactionState.ONGOING, "and described");
            var producers = admin.describeProducers(List.of(new TopicPartition("txn-out", 0))).all().get();
            var states = producers.get(new TopicPartition("txn-out", 0)).activeProducers();
            expect(states.get(0).currentTransactionStartOffset().isPresent(), true, "its producer has one open");
            var second = transactional("java-txn");
            try {
                producer.send(new ProducerRecord<>("txn-out", bytes("void and late")));
                producer.commitTransaction();
                throw new AssertionError("a producer that was replaced commits");
            } catch (KafkaException fenced) {
                System.out.println("ok: a producer that was replaced is fenced: " + fenced.getClass().getSimpleName());
            }
            producer.close(Duration.ZERO);
            second.close();
            committed("hot");
            expect(values("txn-out", "read_uncommitted", 0).size() > 300, true, "whoever wants all sees void records, too");
        }
    }

    static void committed(String temperature) {
        var expected = IntStream.range(0, 300).mapToObj(Integer::toString).toList();
        expect(values("txn-out", "read_committed", 300), expected, "what is committed is seen once, in order, " + temperature);
    }

    static void admin() throws Exception {
        try (var admin = Admin.create(with())) {
            var topic = new NewTopic("made-by-java", 3, (short) 1).configs(Map.of("retention.ms", "3600000"));
            var created = admin.createTopics(List.of(topic));
            created.all().get();
            expect(created.numPartitions("made-by-java").get(), 3, "partitions of a topic that is made");
            var described = admin.describeTopics(List.of("made-by-java")).allTopicNames().get().get("made-by-java");
            expect(described.partitions().size(), 3, "and described");
            expect(described.topicId(), created.topicId("made-by-java").get(), "by one id");
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, "made-by-java");
            var entry = new AlterConfigOp(new ConfigEntry("retention.bytes", "1000000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(entry))).all().get();
            var config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            expect(config.get("retention.ms").value(), "3600000", "a setting that was given");
            expect(config.get("retention.bytes").value(), "1000000", "a setting that was changed");
            expect(admin.describeCluster().nodes().get().size(), 1, "nodes of the cluster");
            admin.deleteTopics(List.of("made-by-java")).all().get();
            expect(admin.listTopics().names().get().contains("made-by-java"), false, "a topic that was deleted");
        }
    }
}
