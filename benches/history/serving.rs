//! Through a server: replay of cold records beside hot ones, and how soon SQL sees what was acknowledged.

use std::io::Write as _;
use std::time::Duration;

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::client::FlightSqlServiceClient;
use basalt::stopwatch::Stopwatch;
use basalt_client::{AckLevel, Client, ClientConfig, ProducerConfig, RecordToSend};
use basalt_proto::PartitionId;
use bytes::Bytes;
use futures::TryStreamExt as _;
use tonic::transport::Endpoint;

use super::data;
use super::measure::{RUNS, median, processor_seconds, quantile};
use super::server::{Server, number};
use super::store::name;

/// How often the flights are produced for replay: about 1.1 GB of frames.
const TIMES: usize = 10;
/// Looks at the newest record.
const LOOKS: usize = 2_000;
/// Records of 1,000 bytes a second that are produced meanwhile: 200 MB/s.
const LOAD_RATE: &str = "200000";

pub(crate) fn run() {
    replay();
    freshness();
}

fn replay() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data_dir = folder.path().join("data");
    // All of it fits into the cache, so that the second read of cold records finds them there. Merging would take a part of the
    // processor.
    let settings = ["cold.cache_bytes=4294967296", "cold.merge_bytes=0"];
    let lines = folder.path().join("flights.ndjson");
    let mut file = std::fs::File::create(&lines).expect("a file");
    for payload in &data::flights().payloads {
        file.write_all(payload).expect("a write");
        file.write_all(b"\n").expect("a write");
    }
    let lines = lines.to_str().expect("text");
    let consume = |server: &Server| {
        let before = processor_seconds(&server.process());
        let line = server.run(&[
            "bench", "consume", "--topic", "flights", "--verify", "headers",
        ]);
        let server_seconds = processor_seconds(&server.process()) - before;
        (number(&line, "mb_per_s"), server_seconds)
    };
    let server = Server::start(&data_dir, &settings);
    for _ in 0..TIMES {
        server.run(&["produce", "flights", lines, "--quiet"]);
    }
    let megabytes = TIMES as f64 * std::fs::metadata(lines).expect("a file").len() as f64 / 1e6;
    let hot: Vec<f64> = (0..RUNS).map(|_| consume(&server).0).collect();
    server.run(&["topic", "cool", "flights", "--wait"]);
    drop(server);
    let (mut first, mut again, mut per_core) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        // A start empties the cache.
        let server = Server::start(&data_dir, &settings);
        let (rate, server_seconds) = consume(&server);
        first.push(rate);
        per_core.push(megabytes / server_seconds);
        again.push(consume(&server).0);
    }
    let (hot, first, again) = (median(hot), median(first), median(again));
    println!(
        "replay to one consumer, medians of {RUNS}: hot {hot:.0} MB/s; cold, first read {first:.0} MB/s ({:.2} of hot; {:.0} MB of \
         payloads a second of the server's processor time), read again {again:.0} MB/s ({:.2} of hot)",
        first / hot,
        median(per_core),
        again / hot
    );
}

fn freshness() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = Server::start(folder.path(), &["log.durability=os"]);
    server.run(&["topic", "create", "load"]);
    let mut load = server.spawn(&[
        "bench",
        "produce",
        "--topic",
        "load",
        "--payload",
        "1000",
        "--rate",
        LOAD_RATE,
        "--duration",
        "600",
        "--verify",
        "count",
    ]);
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let mut took = runtime.block_on(look(&server));
    let ended = load.try_wait().expect("its state");
    assert!(ended.is_none(), "the load ended before the looks did");
    load.kill().expect("it runs");
    load.wait().expect("an end");
    println!(
        "point query on the newest record while 200 MB/s are produced to its partition, {LOOKS} looks: p50 {:.2} ms, p99 {:.2} ms; \
         each saw its record",
        quantile(&mut took, 0.5),
        quantile(&mut took, 0.99)
    );
}

/// Milliseconds from an acknowledgement to the row that shows its record.
async fn look(server: &Server) -> Vec<f64> {
    let address = format!("http://{}", server.address);
    let channel = Endpoint::from_shared(address)
        .expect("an address")
        .connect()
        .await;
    let mut sql = FlightSqlServiceClient::new_from_inner(FlightServiceClient::new(
        channel.expect("a server"),
    ));
    let config = ClientConfig {
        address: server.address.clone(),
        ..ClientConfig::default()
    };
    let client = Client::connect(config).await.expect("a server");
    let config = ProducerConfig {
        linger: Duration::ZERO,
        ack: AckLevel::Os,
        ..ProducerConfig::default()
    };
    let producer = client.producer(name("load"), PartitionId(0), config);
    let mut took = Vec::new();
    for number in 0..LOOKS {
        let record = RecordToSend {
            timestamp_ns: 1_700_000_000_000_000_000,
            key: None,
            payload: Bytes::from(format!("look {number}")),
        };
        let delivery = producer.send(record).await.expect("room");
        let offset = delivery
            .await
            .expect("an acknowledgement")
            .expect("an offset");
        let watch = Stopwatch::start();
        let statement = format!("SELECT _payload FROM load WHERE _offset = {offset}");
        let info = sql.execute(statement, None).await.expect("a plan");
        let ticket = info.endpoint[0].ticket.clone().expect("a ticket");
        let rows = sql.do_get(ticket).await.expect("rows");
        let rows: Vec<_> = rows.try_collect().await.expect("rows");
        took.push(watch.elapsed().as_secs_f64() * 1e3);
        let count: usize = rows.iter().map(arrow::array::RecordBatch::num_rows).sum();
        assert_eq!(count, 1, "the record at {offset} is not there");
    }
    took
}
