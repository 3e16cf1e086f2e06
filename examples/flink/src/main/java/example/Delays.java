package example;

import java.nio.file.*;
import java.time.Duration;
import java.util.Comparator;
import java.util.Optional;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.*;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.*;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.api.common.state.*;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import com.fasterxml.jackson.databind.*;

/**
 * Counts flights and sums delays for each carrier of the topic `flights`, for ever, and writes the running count of its carrier for
 * each flight into the topic `delays`, exactly once. Killed and started again it goes on from its newest checkpoint.
 *
 * Arguments: address, folder of checkpoints, milliseconds between them.
 */
public class Delays {
    public static void main(String[] arguments) throws Exception {
        String address = arguments[0];
        Path checkpoints = Path.of(arguments[1]).toAbsolutePath();
        Files.createDirectories(checkpoints);
        Configuration config = new Configuration();
        config.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(Long.parseLong(arguments[2])));
        config.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, checkpoints.toUri().toString());
        config.set(CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION, ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        config.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 1000);
        config.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, Duration.ofSeconds(1));
        newest(checkpoints).ifPresent(path -> {
            System.out.println("going on from " + path);
            config.set(StateRecoveryOptions.SAVEPOINT_PATH, path.toUri().toString());
        });

        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(config);
        env.setParallelism(2);
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(address)
            .setTopics("flights")
            .setGroupId("flink-delays")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(address)
            .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                .setTopic("delays")
                .setValueSerializationSchema(new SimpleStringSchema())
                .build())
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("flink-delays")
            .setProperty("transaction.timeout.ms", "600000")
            .build();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "flights").uid("flights")
            .map(new Parse()).returns(Types.POJO(Flight.class))
            .keyBy(flight -> flight.carrier)
            .process(new Count()).uid("count")
            .sinkTo(sink).uid("delays");
        env.execute("delays");
    }

    /** The newest checkpoint that is complete. */
    static Optional<Path> newest(Path checkpoints) throws Exception {
        try (Stream<Path> files = Files.walk(checkpoints, 3)) {
            return files.filter(path -> path.endsWith("_metadata"))
                .max(Comparator.comparing(path -> path.toFile().lastModified()))
                .map(Path::getParent);
        }
    }

    public static class Flight {
        public String carrier;
        public double delay;
    }

    static class Parse implements MapFunction<String, Flight> {
        private static final ObjectMapper JSON = new ObjectMapper();

        @Override
        public Flight map(String line) throws Exception {
            JsonNode node = JSON.readTree(line);
            Flight flight = new Flight();
            flight.carrier = node.path("carrier").asText();
            flight.delay = node.path("dep_delay").asDouble(0);
            return flight;
        }
    }

    static class Count extends KeyedProcessFunction<String, Flight, String> {
        private transient ValueState<Long> count;
        private transient ValueState<Double> sum;

        @Override
        public void open(org.apache.flink.api.common.functions.OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
            sum = getRuntimeContext().getState(new ValueStateDescriptor<>("sum", Types.DOUBLE));
        }

        @Override
        public void processElement(Flight flight, Context context, Collector<String> out) throws Exception {
            long n = count.value() == null ? 1 : count.value() + 1;
            double total = (sum.value() == null ? 0 : sum.value()) + flight.delay;
            count.update(n);
            sum.update(total);
            out.collect("{\"carrier\":\"" + flight.carrier + "\",\"n\":" + n + ",\"delay\":" + total + "}");
        }
    }
}
