//! `/metrics`: read at every scrape from where the numbers are kept, so that nothing is counted twice.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use basalt_columnar::{CoolingStatus, TieredLog};
use basalt_ingest::Counters;
use basalt_query::QueryEngine;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Methods of the Flight service; anything else is counted as `other`, so that a client cannot make up label values.
const FLIGHT_METHODS: [&str; 10] = [
    "Handshake",
    "ListFlights",
    "GetFlightInfo",
    "PollFlightInfo",
    "GetSchema",
    "DoGet",
    "DoPut",
    "DoExchange",
    "DoAction",
    "ListActions",
];

/// Where the numbers are.
pub(crate) struct Metrics {
    tiered: Arc<TieredLog>,
    engine: Arc<QueryEngine>,
    /// Set once the server that counts is there.
    sockets: OnceLock<Arc<Counters>>,
    flight_calls: [AtomicU64; FLIGHT_METHODS.len() + 1],
    strangers: AtomicU64,
}

impl Metrics {
    pub(crate) fn new(tiered: Arc<TieredLog>, engine: Arc<QueryEngine>) -> Arc<Self> {
        Arc::new(Self {
            tiered,
            engine,
            sockets: OnceLock::new(),
            flight_calls: Default::default(),
            strangers: AtomicU64::new(0),
        })
    }

    /// From now on the counters of the sockets are shown too.
    pub(crate) fn watch(&self, counters: Arc<Counters>) {
        let _ = self.sockets.set(counters);
    }

    /// A request of nobody who is known.
    pub(super) fn count_stranger(&self) {
        self.strangers.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_flight_call(&self, path: &str) {
        let method = path.rsplit('/').next().unwrap_or_default();
        let slot = FLIGHT_METHODS
            .iter()
            .position(|known| *known == method)
            .unwrap_or(FLIGHT_METHODS.len());
        self.flight_calls[slot].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn to_text(self: &Arc<Self>) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Scrape(Arc::clone(self))));
        let mut out = String::new();
        text::encode(&mut out, &registry)?;
        Ok(out)
    }
}

struct Scrape(Arc<Metrics>);

impl fmt::Debug for Scrape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        gauge(
            &mut encoder,
            "basalt_build",
            "The version that runs, as a label",
            &[(version, 1)],
        )?;
        if let Some(counters) = self.0.sockets.get() {
            sockets(&mut encoder, counters)?;
        }
        flight(&mut encoder, &self.0)?;
        queries(&mut encoder, &self.0.engine)?;
        tier(&mut encoder, &self.0.tiered)?;
        partitions(&mut encoder, &self.0.tiered)?;
        cooling(&mut encoder, &self.0.tiered)
    }
}

fn sockets(encoder: &mut DescriptorEncoder, counters: &Counters) -> Result<(), fmt::Error> {
    let snapshot = counters.snapshot();
    let named = snapshot.named();
    for (name, value) in named {
        if name == "connections_open" {
            plain_gauge(
                encoder,
                "basalt_connections_open",
                "Connections open now",
                value,
            )?;
        } else {
            let name = format!("basalt_{}", name.trim_end_matches("_total"));
            plain_counter(encoder, &name, help_of(&name), value)?;
        }
    }
    let refused: Vec<_> = snapshot
        .refused
        .iter()
        .map(|(kind, count)| ([("kind", format!("{kind:?}"))], *count))
        .collect();
    counter(
        encoder,
        "basalt_refused",
        "Frames, requests and openings refused, by kind",
        &refused,
    )
}

fn help_of(name: &str) -> &'static str {
    match name {
        "basalt_connections" => "Connections accepted",
        "basalt_connections_http" => "Connections handed to HTTP and Flight SQL",
        "basalt_connection_panics" => "Connection tasks that panicked: anything but 0 is a defect",
        "basalt_frames_in" => "Frames stored",
        "basalt_records_in" => "Records stored",
        "basalt_bytes_in" => "Bytes of frames stored",
        "basalt_appends" => "Appends; frames_in / appends is the batching",
        "basalt_bytes_sendfile" => "Bytes of frames sent by sendfile",
        "basalt_bytes_copied" => "Bytes of frames copied through the process to be sent",
        "basalt_commits" => "Offsets committed by groups",
        "basalt_requests" => "Session requests answered or refused",
        "basalt_accept_errors" => "Failed accepts",
        "basalt_connections_refused" => "Connections closed at once because the server was full",
        "basalt_connections_evicted" => "Silent connections closed to make room",
        "basalt_connections_unknown" => "Connections whose first byte nobody here speaks",
        "basalt_handshake_timeouts" => {
            "Peers that did not finish their opening, or prove who they are, in time"
        }
        "basalt_frame_timeouts" => "Peers that began a frame or request and did not finish in time",
        "basalt_send_timeouts" => "Readers cut off because they took no data in time",
        "basalt_ack_writes" => "Writes that carried acknowledgements of native producers",
        _ => "A counter of the sockets",
    }
}

fn flight(encoder: &mut DescriptorEncoder, metrics: &Metrics) -> Result<(), fmt::Error> {
    let methods = FLIGHT_METHODS.iter().chain(["other"].iter());
    let calls: Vec<_> = methods
        .zip(&metrics.flight_calls)
        .map(|(method, count)| ([("method", *method)], count.load(Ordering::Relaxed)))
        .collect();
    counter(
        encoder,
        "basalt_flight_calls",
        "Calls of the Flight SQL service, by method",
        &calls,
    )?;
    plain_counter(
        encoder,
        "basalt_http_strangers",
        "HTTP requests refused because nobody who is known sent them",
        metrics.strangers.load(Ordering::Relaxed),
    )
}

fn queries(encoder: &mut DescriptorEncoder, engine: &QueryEngine) -> Result<(), fmt::Error> {
    let counts = engine.counters();
    let described = [
        ("basalt_queries_started", "Queries started", counts.started),
        (
            "basalt_queries_succeeded",
            "Queries that gave all their rows",
            counts.succeeded,
        ),
        (
            "basalt_queries_failed",
            "Queries that ended with an error",
            counts.failed,
        ),
        (
            "basalt_queries_cancelled",
            "Queries whose client left or whose time was up",
            counts.cancelled,
        ),
        ("basalt_query_rows", "Rows that queries gave", counts.rows),
    ];
    for (name, help, value) in described {
        plain_counter(encoder, name, help, value)?;
    }
    let now = [
        (
            "basalt_queries_running",
            "Queries that plan or run now",
            counts.running,
        ),
        (
            "basalt_queries_queued",
            "Queries that wait for a place now",
            counts.queued,
        ),
        (
            "basalt_query_memory_bytes",
            "Bytes that queries hold now in sorts, joins and aggregates",
            counts.memory_bytes,
        ),
        (
            "basalt_query_spill_bytes",
            "Bytes of spill files of queries now",
            counts.spill_bytes,
        ),
    ];
    for (name, help, value) in now {
        plain_gauge(encoder, name, help, value)?;
    }
    Ok(())
}

/// One row a partition, of what `sys.cooling` shows.
fn cooling(encoder: &mut DescriptorEncoder, tiered: &TieredLog) -> Result<(), fmt::Error> {
    let statuses: Vec<_> = tiered
        .all_partitions()
        .iter()
        .map(|partition| {
            let labels = [
                ("topic", partition.topic().to_string()),
                ("partition", partition.id().to_string()),
            ];
            (labels, partition.cooling_status())
        })
        .collect();
    let rows = |of: fn(&CoolingStatus) -> u64| {
        let rows = statuses
            .iter()
            .map(|(labels, status)| (labels.clone(), of(status)));
        rows.collect::<Vec<_>>()
    };
    gauge(
        encoder,
        "basalt_cooling_backlog_segments",
        "Sealed segments that are not cold yet",
        &rows(|status| status.backlog_segments),
    )?;
    gauge(
        encoder,
        "basalt_cooling_backlog_bytes",
        "Bytes of frames in sealed segments that are not cold yet",
        &rows(|status| status.backlog_bytes),
    )?;
    gauge(
        encoder,
        "basalt_cooling_failing",
        "1 while the last attempt to cool or merge has failed",
        &rows(|status| u64::from(status.last_error.is_some())),
    )?;
    counter(
        encoder,
        "basalt_cooled_segments",
        "Segments cooled since the start",
        &rows(|status| status.cooled_segments),
    )?;
    counter(
        encoder,
        "basalt_cooled_frame_bytes",
        "Bytes of frames cooled since the start",
        &rows(|status| status.cooled_frame_bytes),
    )?;
    counter(
        encoder,
        "basalt_merged_files",
        "Files replaced by merged ones since the start",
        &rows(|status| status.merged_files),
    )
}

fn tier(encoder: &mut DescriptorEncoder, tiered: &TieredLog) -> Result<(), fmt::Error> {
    let status = tiered.status();
    let gauges = [
        (
            "basalt_hot_limit_bytes",
            "Bytes of frames that segments may hold before appends are refused; 0 without a limit",
            status.hot_limit_bytes,
        ),
        (
            "basalt_cold_backlog_bytes",
            "Bytes of frames in segments that are to be cooled",
            status.backlog_bytes,
        ),
        (
            "basalt_store_resting",
            "Whether the object store is left alone because it fails",
            u64::from(status.store_rests),
        ),
    ];
    for (name, help, value) in gauges {
        plain_gauge(encoder, name, help, value)?;
    }
    plain_counter(
        encoder,
        "basalt_store_failures",
        "Failures of the object store that its client could not get over",
        status.store_failures,
    )
}

/// One row a partition. A topic is a label value as it is: `a.b` and `a_b` stay two.
fn partitions(encoder: &mut DescriptorEncoder, tiered: &TieredLog) -> Result<(), fmt::Error> {
    let mut rows: [Vec<_>; 9] = Default::default();
    let topics = tiered.log().topics();
    for topic in &topics {
        for partition in tiered.topic_partitions(topic.name()) {
            let labels = [
                ("topic", topic.name().to_string()),
                ("partition", partition.hot().id().to_string()),
            ];
            let bounds = partition.bounds();
            let snapshot = partition.snapshot();
            let values = [
                bounds.log_start_offset.0,
                bounds.cold_end_offset.0,
                bounds.stable_offset.0,
                bounds.high_watermark.0,
                bounds.log_end_offset.0,
                bounds.hot_bytes,
                bounds.cold_bytes,
                snapshot.hot.len() as u64,
                snapshot.cold.len() as u64,
            ];
            for (column, value) in rows.iter_mut().zip(values) {
                column.push((labels.clone(), value));
            }
        }
    }
    plain_gauge(encoder, "basalt_topics", "Topics", topics.len() as u64)?;
    let described = [
        ("basalt_log_start_offset", "First readable offset"),
        (
            "basalt_cold_end_offset",
            "Offsets below it are in Parquet, the others in segments",
        ),
        (
            "basalt_stable_offset",
            "Below it the outcome of every transaction is known",
        ),
        ("basalt_high_watermark", "Offsets below it may be read"),
        ("basalt_log_end_offset", "The next offset to be written"),
        ("basalt_hot_bytes", "Bytes of frames in segments"),
        ("basalt_cold_bytes", "Bytes of Parquet files"),
        ("basalt_hot_segments", "Segments"),
        ("basalt_cold_files", "Parquet files"),
    ];
    for ((name, help), rows) in described.into_iter().zip(&rows) {
        gauge(encoder, name, help, rows)?;
    }
    Ok(())
}

fn counter<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    rows: &[(L, u64)],
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in rows {
        ConstCounter::new(*value).encode(family.encode_family(labels)?)?;
    }
    Ok(())
}

fn gauge<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    rows: &[(L, u64)],
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in rows {
        ConstGauge::new(i64::try_from(*value).unwrap_or(i64::MAX))
            .encode(family.encode_family(labels)?)?;
    }
    Ok(())
}

fn plain_counter(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), fmt::Error> {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

fn plain_gauge(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), fmt::Error> {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(metric)
}
