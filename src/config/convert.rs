//! From the sections to what each crate takes.

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use basalt_columnar::{ColdConfig, StoreConfig};
use basalt_ingest::{Advertised, GroupLimits, ServerConfig};
use basalt_log::{LogConfig, TopicConfig, TopicDurability};
use basalt_proto::FrameLimits;
use basalt_query::QueryConfig;

use super::{Config, DurabilityLevel};

impl Config {
    fn limits(&self) -> FrameLimits {
        FrameLimits {
            max_key_bytes: self.log.max_key_bytes,
            max_payload_bytes: self.log.max_payload_bytes,
            // So that compression does not get around the limit.
            max_records_bytes: self.log.max_payload_bytes,
        }
    }

    /// Where Parquet files and manifests are, unless they are in an object store.
    #[must_use]
    pub fn cold_dir(&self) -> PathBuf {
        self.data_dir.join("cold")
    }

    /// The object store of Parquet files and manifests, if one is set. Whatever is secret about it is in the process's variables.
    pub(crate) fn store_config(&self) -> Option<StoreConfig> {
        let cold = &self.cold;
        let providers = ["AWS_", "AZURE_", "GOOGLE_", "IDENTITY_"];
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let is_theirs = providers.iter().any(|prefix| name.starts_with(prefix));
            Some((name, value.into_string().ok()?)).filter(|_| is_theirs)
        });
        (!cold.store.is_empty()).then(|| StoreConfig {
            url: cold.store.clone(),
            endpoint: cold.store_endpoint.clone(),
            region: cold.store_region.clone(),
            allow_http: cold.store_allow_http,
            variables: variables.collect(),
        })
    }

    pub(crate) fn log_config(&self) -> LogConfig {
        let log = &self.log;
        LogConfig {
            segment_bytes: log.segment_bytes,
            block_bytes: log.block_bytes,
            flush_interval: Duration::from_millis(log.flush_interval_ms),
            flush_bytes: log.flush_bytes,
            wal_bytes: log.wal_bytes,
            limits: self.limits(),
            auto_create_topics: log.auto_create_topics,
            default_partitions: log.default_partitions,
            topic_defaults: TopicConfig {
                durability: match log.durability {
                    DurabilityLevel::Fsync => TopicDurability::Fsync,
                    DurabilityLevel::Os => TopicDurability::Os,
                },
                retention_bytes: Some(log.retention_bytes).filter(|bytes| *bytes > 0),
                retention_age: Some(log.retention_age_ms)
                    .filter(|age| *age > 0)
                    .map(Duration::from_millis),
                ..TopicConfig::default()
            },
            sync_threads: log.sync_threads,
            ..LogConfig::new(&self.data_dir)
        }
    }

    pub(crate) fn cold_config(&self) -> ColdConfig {
        let cold = &self.cold;
        ColdConfig {
            row_group_bytes: cold.row_group_bytes,
            cache_bytes: cold.cache_bytes,
            hot_bytes: cold.hot_bytes,
            hot_limit_bytes: cold.hot_limit_bytes,
            hot_age: Duration::from_millis(cold.hot_age_ms),
            // Out of range is refused by `validate`; 0 is refused by the crate itself.
            zstd_level: i32::try_from(cold.zstd_level).unwrap_or_default(),
            verify_replay: cold.verify_replay,
            shred_json: cold.shred_json,
            merge_bytes: cold.merge_bytes,
            maintenance_interval: Duration::from_millis(cold.maintenance_interval_ms),
            ..ColdConfig::new(self.data_dir.join("cache"))
        }
    }

    pub(crate) fn server_config(&self) -> ServerConfig {
        let server = &self.server;
        ServerConfig {
            listen: self.listen.clone(),
            limits: self.limits(),
            handshake_timeout: Duration::from_millis(server.handshake_timeout_ms),
            frame_timeout: Duration::from_millis(server.frame_timeout_ms),
            send_timeout: Duration::from_millis(server.send_timeout_ms),
            max_connections: server.max_connections,
            connection_memory_bytes: server.connection_memory_bytes,
            large_frame_memory_bytes: server.large_frame_memory_bytes,
            max_in_flight_requests: server.max_in_flight_requests,
            max_request_bytes: server.max_request_bytes,
            max_fetch_bytes: server.max_fetch_bytes,
            max_fetch_wait: Duration::from_millis(server.max_fetch_wait_ms),
            cold_reads: server.cold_reads,
            shutdown_grace: Duration::from_millis(server.shutdown_grace_ms),
            // A wrong one is refused by `validate`.
            advertised: self.advertised().unwrap_or_default(),
            groups: self.group_limits(),
            max_transaction: Duration::from_millis(server.max_transaction_ms),
        }
    }

    fn group_limits(&self) -> GroupLimits {
        let groups = &self.groups;
        GroupLimits {
            initial_rebalance_delay: Duration::from_millis(groups.initial_rebalance_delay_ms),
            min_session: Duration::from_millis(groups.min_session_ms),
            max_session: Duration::from_millis(groups.max_session_ms),
            consumer_session: Duration::from_millis(groups.consumer_session_ms),
            consumer_heartbeat: Duration::from_millis(groups.consumer_heartbeat_ms),
            max_members: groups.max_members,
            max_metadata_bytes: groups.max_metadata_bytes,
            retention: (groups.retention_ms > 0)
                .then(|| Duration::from_millis(groups.retention_ms)),
        }
    }

    /// Where Kafka's clients are told to connect, if that is said.
    ///
    /// # Errors
    /// What is wrong with `server.advertised`.
    pub(super) fn advertised(&self) -> Result<Option<Advertised>, String> {
        let text = &self.server.advertised;
        if text.is_empty() {
            return Ok(None);
        }
        let parsed = text.rsplit_once(':').and_then(|(host, port)| {
            let bare = host
                .strip_prefix('[')
                .and_then(|host| host.strip_suffix(']'));
            let is_v6 = bare.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
            let is_name = (1..=253).contains(&host.len())
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
            let port = port.parse().ok().filter(|port| is_number && *port > 0)?;
            let host = bare.unwrap_or(host).to_owned();
            // What stands for every address of this machine leads others to their own.
            let is_any = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
            ((is_v6 || is_name) && !is_any).then_some(Advertised { host, port })
        });
        parsed.map(Some).ok_or_else(|| {
            format!(
                "`server.advertised` is `{text}`: it must be HOST:PORT or [ADDRESS]:PORT, and lead to this server from others"
            )
        })
    }

    pub(crate) fn query_config(&self) -> QueryConfig {
        let query = &self.query;
        let default = QueryConfig::default();
        QueryConfig {
            memory_bytes: query.memory_bytes,
            max_concurrent: query.max_concurrent,
            max_queued: query.max_queued,
            queue_timeout: Duration::from_millis(query.queue_timeout_ms),
            spill_dir: Some(self.data_dir.join("spill")),
            spill_bytes: query.spill_bytes,
            // Out of range is refused by `validate`.
            nice: i32::try_from(query.nice).unwrap_or(default.nice),
            timeout: Duration::from_millis(query.timeout_ms),
            batch_rows: query.batch_rows,
            target_partitions: match query.target_partitions {
                0 => default.target_partitions,
                threads => threads,
            },
            settings: self.settings().collect(),
        }
    }
}
