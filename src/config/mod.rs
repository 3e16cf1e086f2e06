//! The configuration of a server: a TOML file, overridden by `BASALT_*` variables, overridden by flags.
//!
//! Every setting is declared once, in a `section!` table whose doc comments say unit, default, trade-off and safe range;
//! `serve --print-config` prints exactly those. An unknown name in the file is an error that names it and the file.
//! [`Config::validate`] is the only place that judges values.

mod convert;
mod load;
mod print;
mod section;

use std::net::SocketAddr;
use std::path::PathBuf;

use basalt_query::QueryConfig;
use serde::{Deserialize, Serialize};

pub use load::{ConfigError, Loaded, Overrides};
pub use section::Field;
use section::section;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const HOUR_MS: u64 = 3_600_000;
const YEAR_MS: u64 = 366 * 24 * HOUR_MS;

/// What an acknowledgement of a topic promises unless the topic or the request says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityLevel {
    /// On disk: a group commit covers the record before it is acknowledged.
    #[default]
    Fsync,
    /// In the page cache: survives a crash of the process, not of the machine.
    Os,
}

section! {
    /// Segments on disk: how large, how durable, how long kept.
    LogSection {
        /// Bytes of frames at which a segment is sealed. Larger: fewer files, but recovery after a crash reads one
        /// whole active segment per partition and cooling starts later. Safe: 1 MiB to 4 GiB.
        segment_bytes: u64 = 128 * MIB, in 1024 ..= 4 * GIB;
        /// Bytes of frames that share one index entry and one checksum. Smaller: finer seeks, larger index.
        /// Safe: 4 KiB to 16 MiB.
        block_bytes: u32 = 64 << 10, in 1024 ..= 16 * MIB;
        /// Milliseconds after which data acknowledged at level `os` is flushed to disk. Longer: fewer flushes, more
        /// lost if the machine fails. Does not concern level `fsync`. Safe: 10 to 60,000.
        flush_interval_ms: u64 = 500, in 1 ..= HOUR_MS;
        /// Unflushed bytes of a partition that cause a flush before the interval is over. Safe: 64 KiB to 1 GiB.
        flush_bytes: u64 = 64 * MIB, in 4096 ..= TIB;
        /// Bytes of disk for the write-ahead log at most, which makes small appends to many partitions durable by one sync.
        /// With 0 each partition is synced for itself.
        wal_bytes: u64 = 64 * MIB, in 0 ..= TIB;
        /// Threads that carry out fsync. More: more partitions commit at once on disks that take it. Safe: 1 to 64.
        sync_threads: usize = 2, in 1 ..= 256;
        /// Bytes a record's key may have, inclusive. Safe: 1 to 16 MiB.
        max_key_bytes: u32 = 1 << 20, in 0 ..= GIB;
        /// Bytes a record's payload may have, inclusive. A reader must be able to hold one. Safe: 1 KiB to 256 MiB.
        max_payload_bytes: u32 = 52_428_800, in 1 ..= GIB;
        /// Whether a topic comes into being when a client first names it. Off: a misspelt name is an error.
        auto_create_topics: bool = true;
        /// Partitions of a topic created without saying how many. Safe: 1 to 1,000.
        default_partitions: u32 = 1, in 1 ..= 1_000_000;
        /// What an acknowledgement promises: "fsync" (on disk) or "os" (in the page cache: faster, survives a crash of
        /// the process but not of the machine). A topic or a request may choose otherwise.
        durability: DurabilityLevel = DurabilityLevel::Fsync;
        /// Bytes of a partition, hot and cold, above which the oldest are deleted; 0 keeps everything.
        retention_bytes: u64 = 0, in 0 ..= i64::MAX;
        /// Milliseconds since the last append to a segment (by this server's clock) after which it is deleted; 0 keeps
        /// everything.
        retention_age_ms: u64 = 0, in 0 ..= 1000 * YEAR_MS;
    }
}

section! {
    /// Cooling: when sealed segments become Parquet, and the cache that serves them again.
    ColdSection {
        /// Where Parquet files and manifests are: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or
        /// `file:///FOLDER`; empty for the folder `cold` in the data folder. Credentials are no settings: they come from the
        /// provider's variables (`AWS_ACCESS_KEY_ID` and so on) or the machine's role. Each data folder needs a prefix of its own,
        /// and keeps to it (docs/OBJECT_STORAGE.md).
        store: String = String::new();
        /// Another address of the store's service than the provider's, `https://HOST:PORT`; for `s3` and `az`.
        store_endpoint: String = String::new();
        /// Region of the bucket; empty for what `AWS_REGION` says, or us-east-1. For `s3`.
        store_region: String = String::new();
        /// Whether the store may be spoken to without TLS, so that whoever is in between reads and changes what is stored.
        store_allow_http: bool = false;
        /// Bytes of a partition that stay in hot segments; sealed ones beyond it are cooled. More: more is served by
        /// sendfile from plain segments, less is compressed. Safe: 16 MiB to the size of the disk.
        hot_bytes: u64 = GIB, in 0 ..= i64::MAX;
        /// Bytes of frames that may be in hot segments of all partitions together; 0 for as many as the disk holds. From three
        /// quarters of it on, sealed segments are cooled whatever `hot_bytes` says; when it is reached, because the store is away or
        /// slow, appends are refused (storage full, with when to try again) until segments have been cooled. Safe: four times
        /// `log.segment_bytes` and more, below what the disk holds.
        hot_limit_bytes: u64 = 0, in 0 ..= i64::MAX;
        /// Milliseconds after its last append at which a sealed segment is cooled even when `hot_bytes` would keep it.
        hot_age_ms: u64 = HOUR_MS, in 0 ..= 1000 * YEAR_MS;
        /// Bytes of frames in a Parquet row group: what cooling holds in memory, and the least that replay rebuilds.
        /// Larger: better compression, more memory. Safe: 1 to 128 MiB.
        row_group_bytes: u64 = 16 * MIB, in 1024 ..= GIB;
        /// Bytes of disk for segments rebuilt from Parquet for readers of old data. Smaller: a second reader of the
        /// same range may rebuild it again. Safe: 64 MiB and more.
        cache_bytes: u64 = GIB, in 0 ..= i64::MAX;
        /// Level of ZSTD. Higher: smaller files, slower cooling; reading costs the same. Safe: 1 to 9.
        zstd_level: u32 = 3, in 1 ..= 22;
        /// Whether every row group is rebuilt into frames and compared with the segment before that is deleted. Off:
        /// cooling takes about half the time, and trusts its own writer.
        verify_replay: bool = true;
        /// Whether the fields of JSON payloads become columns of cold files, and payloads that these give back byte for byte
        /// are left out. On: files of JSON take less than half, and SQL over a field reads that field. Off: cooling JSON takes
        /// about half the time. A topic may choose otherwise.
        shred_json: bool = true;
        /// Bytes of Parquet up to which neighbouring small files of a partition are merged into one after cooling; 0 leaves
        /// each segment its own file. Files of half of it are left alone. Larger: fewer files, more bytes written again.
        /// Safe: 16 MiB to 1 GiB.
        merge_bytes: u64 = 128 * MIB, in 0 ..= 16 * GIB;
        /// Milliseconds between two looks at the hot window and at retention when no segment was sealed meanwhile.
        /// Shorter: records expire closer to their time. Safe: 1,000 to 600,000.
        maintenance_interval_ms: u64 = 30_000, in 100 ..= HOUR_MS;
    }
}

section! {
    /// Connections: limits that keep one client from harming the others.
    ServerSection {
        /// HOST:PORT, or `[ADDRESS]:PORT` for IPv6, at which Kafka's clients are told to connect; empty: each is told the address
        /// that its connection came in at. To be set behind a proxy, a translated address or a container's published port.
        advertised: String = String::new();
        /// Path of the file of users, made by `basalt user add`; then only they are served, on every protocol, but for `/` and `/healthz`.
        /// It is read again when it changes. Empty: everybody who can connect is served. Passwords and records cross the network
        /// as they are, since there is no TLS (docs/SECURITY.md).
        users_file: String = String::new();
        /// Milliseconds a new connection has to say what it wants. Longer: slower clients get in. Shorter: descriptors
        /// are free sooner. Safe: 1,000 to 60,000.
        handshake_timeout_ms: u64 = 10_000, in 1 ..= HOUR_MS;
        /// Milliseconds in which a frame or request that has begun must bring its next MiB, or its end. A connection
        /// that is silent between two of them is legal for ever. Safe: 1,000 to 300,000.
        frame_timeout_ms: u64 = 30_000, in 1 ..= HOUR_MS;
        /// Milliseconds without progress after which a reader that has data waiting is disconnected. It holds segments
        /// that retention would free. Safe: 10,000 to 600,000.
        send_timeout_ms: u64 = 120_000, in 1 ..= HOUR_MS;
        /// Connections open at once, lowered at the start to what the limit of file descriptors allows. Beyond it the
        /// peer that has longest not said what it wants makes room; where all have, no further one is taken. Safe: 16 to 100,000.
        max_connections: usize = 10_000, in 1 ..= 10_000_000;
        /// Bytes of memory one connection may hold: what is being read and acknowledgements that wait. Must hold the
        /// largest frame and 1 MiB. Safe: 64 MiB with the default payload limit.
        connection_memory_bytes: u64 = 64 * MIB, in 4096 ..= TIB;
        /// Bytes that frames and requests of more than 1 MiB may hold on the whole server while they arrive; further
        /// ones wait, and are refused as busy after `frame_timeout_ms`. Safe: 64 MiB to a quarter of the memory.
        large_frame_memory_bytes: u64 = GIB, in 4096 ..= TIB;
        /// Requests of a session that may be unanswered, long polls included; further ones wait in the socket.
        /// Safe: 1 to 1,024.
        max_in_flight_requests: usize = 64, in 1 ..= 65_536;
        /// Bytes a session's request may have. Must hold the largest frame and 4 KiB. Safe: 2 to 256 MiB.
        max_request_bytes: u32 = 56 << 20, in 4096 ..= 2 * GIB;
        /// Bytes of frames one fetch returns at most, whatever it asks for; one frame is returned even if it is larger.
        /// Safe: 1 to 256 MiB.
        max_fetch_bytes: u32 = 16 << 20, in 1 ..= 2 * GIB;
        /// Milliseconds a fetch may wait for new records, whatever it asks for. Safe: 1,000 to 600,000.
        max_fetch_wait_ms: u64 = 300_000, in 0 ..= HOUR_MS;
        /// Reads that wait for the disk at a time, for consumers of what is not in memory, each of at most 4 MiB. More may help
        /// a disk that is fast only under many requests; fewer leave more of it to writes. Safe: 1 to 64.
        cold_reads: usize = 4, in 1 ..= 1_024;
        /// Milliseconds of the longest transaction a producer may ask for. Until it ends, whoever reads what is committed sees nothing
        /// behind its first record, and its segments are not cooled. Flink asks for an hour by default. Safe: 60,000 to 3,600,000.
        max_transaction_ms: u64 = 900_000, in 1 ..= 2_147_483_647;
        /// Whether the machine's cores are kept from sleeping while the server runs, by a request to `/dev/cpu_dma_latency`, which
        /// root may make. On: an idle core answers in some 5 microseconds instead of some 25 (virtual machines) or 50 to 200
        /// (deep sleep), and takes power, or its host's time, all the while.
        keep_cores_awake: bool = false;
        /// Milliseconds that a stop grants to work in progress before connections are cut. Safe: 1,000 to 60,000.
        shutdown_grace_ms: u64 = 10_000, in 0 ..= HOUR_MS;
    }
}

section! {
    /// Groups of consumers that agree among themselves who reads what, as Kafka's clients do.
    GroupsSection {
        /// Milliseconds that the first members of a group wait for others. Longer: a group that starts as a whole agrees once.
        /// Shorter: the first record comes sooner. Safe: 0 to 10,000.
        initial_rebalance_delay_ms: u64 = 3_000, in 0 ..= HOUR_MS;
        /// Milliseconds of the shortest session a member may ask for: without a heartbeat for so long it is out.
        /// Safe: 1,000 and more.
        min_session_ms: u64 = 6_000, in 1 ..= HOUR_MS;
        /// Milliseconds of the longest session a member may ask for. Safe: 60,000 and more.
        max_session_ms: u64 = 1_800_000, in 1 ..= YEAR_MS;
        /// Milliseconds without a heartbeat after which a member of the consumer protocol (KIP-848) is out; those of the classic one say
        /// so themselves. Safe: 10,000 to 60,000.
        consumer_session_ms: u64 = 45_000, in 1 ..= HOUR_MS;
        /// Milliseconds between two heartbeats of such a member, as it is told. Shorter: groups agree sooner, and members ask more.
        /// Safe: 1,000 to a third of the session.
        consumer_heartbeat_ms: u64 = 5_000, in 1 ..= HOUR_MS;
        /// Members a group has at most. Safe: 10 to 10,000.
        max_members: usize = 10_000, in 1 ..= 1_000_000;
        /// Bytes of the text that a consumer may store with an offset. Safe: 0 to 32,767.
        max_metadata_bytes: usize = 4_096, in 0 ..= 32_767;
        /// Milliseconds after which a group without members that committed nothing meanwhile is forgotten with its offsets; 0
        /// keeps them for ever. Kafka's default is 604,800,000 (7 days). Safe: more than any consumer may be away.
        retention_ms: u64 = 0, in 0 ..= 100 * YEAR_MS;
    }
}

section! {
    /// SQL: what a query may use.
    QuerySection {
        /// Bytes of memory that all queries together may use for sorting, grouping and joining; beyond it they spill to
        /// disk or fail with a typed error. Safe: 64 MiB to half the machine.
        memory_bytes: usize = 1 << 30, in 1_048_576 ..= TIB;
        /// Queries that run at a time; others wait for one of them to end. More: each has less memory and less of the
        /// processor. Safe: 1 to 64.
        max_concurrent: usize = 8, in 1 ..= 10_000;
        /// Queries that wait at a time; any other is refused at once, to be sent again later. Safe: 0 to 1,000.
        max_queued: usize = 64, in 0 ..= 100_000;
        /// Milliseconds that a query waits before it is refused. Safe: 100 and more.
        queue_timeout_ms: u64 = 30_000, in 1 ..= HOUR_MS;
        /// Bytes of disk, in the folder `spill` of the data folder, for what does not fit `memory_bytes`. Safe: 1 GiB to a part
        /// of the disk that records do not need.
        spill_bytes: u64 = 16 * GIB, in 0 ..= i64::MAX;
        /// By how much the threads of queries stand behind all others of the machine, as in nice(1). More: heavier queries
        /// slow producers and consumers less, and take longer. Safe: 0 to 19.
        nice: u32 = 10, in 0 ..= 19;
        /// Milliseconds after which a query is cancelled. Safe: 1,000 and more.
        timeout_ms: u64 = 300_000, in 1 ..= YEAR_MS;
        /// Rows in a batch. Larger: less overhead a row, more memory. Safe: 1,024 to 65,536.
        batch_rows: usize = 8_192, in 1 ..= QueryConfig::MAX_BATCH_ROWS;
        /// Threads a query may use; 0 takes as many as the machine has cores.
        target_partitions: usize = 0, in 0 ..= 1_024;
    }
}

/// The whole configuration of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Folder of everything the server keeps.
    pub data_dir: PathBuf,
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Segments on disk.
    pub log: LogSection,
    /// Cooling.
    pub cold: ColdSection,
    /// Connections.
    pub server: ServerSection,
    /// Groups of consumers.
    pub groups: GroupsSection,
    /// SQL.
    pub query: QuerySection,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("./basalt-data"),
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 9092))],
            log: LogSection::default(),
            cold: ColdSection::default(),
            server: ServerSection::default(),
            groups: GroupsSection::default(),
            query: QuerySection::default(),
        }
    }
}

impl Config {
    /// Judges every value.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming each setting that is out of its range, or contradicts another, with the range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        if self.listen.is_empty() {
            problems.push("`listen` is empty: name at least one HOST:PORT".to_owned());
        }
        if self.data_dir.as_os_str().is_empty() {
            problems.push("`data_dir` is empty: name a folder".to_owned());
        }
        for section in ["log", "cold", "server", "groups", "query"] {
            let mut report = |name: &str, value: u64, low: u64, high: u64| {
                problems.push(format!(
                    "`{section}.{name}` is {value}: it must be between {low} and {high}"
                ));
            };
            match section {
                "log" => self.log.out_of_range(&mut report),
                "cold" => self.cold.out_of_range(&mut report),
                "server" => self.server.out_of_range(&mut report),
                "groups" => self.groups.out_of_range(&mut report),
                _ => self.query.out_of_range(&mut report),
            }
        }
        if u64::from(self.log.block_bytes) > self.log.segment_bytes {
            problems.push(format!(
                "`log.block_bytes` is {}: it must not exceed `log.segment_bytes` ({})",
                self.log.block_bytes, self.log.segment_bytes
            ));
        }
        let hot_limit = self.cold.hot_limit_bytes;
        if hot_limit > 0 && hot_limit / 2 < self.log.segment_bytes {
            problems.push(format!(
                "`cold.hot_limit_bytes` is {hot_limit}: it must hold two segments (`log.segment_bytes` is {}), or be 0",
                self.log.segment_bytes
            ));
        }
        let groups = &self.groups;
        if groups.min_session_ms > groups.max_session_ms {
            problems.push(format!(
                "`groups.min_session_ms` is {}: it must not exceed `groups.max_session_ms` ({})",
                groups.min_session_ms, groups.max_session_ms
            ));
        }
        if groups.consumer_heartbeat_ms >= groups.consumer_session_ms {
            problems.push(format!(
                "`groups.consumer_heartbeat_ms` is {}: it must be less than `groups.consumer_session_ms` ({})",
                groups.consumer_heartbeat_ms, groups.consumer_session_ms
            ));
        }
        if let Err(problem) = self.advertised() {
            problems.push(problem);
        }
        // What contradicts each other is for the crates to say, once each value is one that could be.
        if problems.is_empty() {
            let server = self
                .server_config()
                .validate()
                .map_err(|error| format!("[server] {error}"));
            let cold = self
                .cold_config()
                .validate()
                .map_err(|error| format!("[cold] {error}"));
            let store = match self.store_config() {
                Some(store) => store
                    .validate()
                    .map_err(|error| format!("`cold.store`: {error}")),
                None => Ok(()),
            };
            problems.extend([server, cold, store].into_iter().filter_map(Result::err));
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::Invalid { problems })
        }
    }
}

#[cfg(test)]
mod tests;
