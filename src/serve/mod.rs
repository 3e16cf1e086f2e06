//! A whole server in this process: log, cooling, SQL and sockets, opened in that order and closed in the other.

mod awake;
mod command;
mod signals;
mod topics;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use basalt_auth::Authenticator;
use basalt_columnar::{ColdStore, TieredLog, holds_files};
use basalt_ingest::{Counters, HttpHandler, Server, ShutdownTrigger};
use basalt_log::{Log, RealDisk, SystemClock};
use basalt_query::QueryEngine;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::http::{Http, Metrics};
use awake::CoresAwake;
use topics::ServedTopics;

pub(crate) use command::{ServeArgs, run};
pub(crate) use signals::Signals;

/// A running server.
#[derive(Debug)]
pub struct Instance {
    tiered: Arc<TieredLog>,
    engine: Arc<QueryEngine>,
    counters: Arc<Counters>,
    addresses: Vec<SocketAddr>,
    shutdown: ShutdownTrigger,
    sockets: JoinHandle<std::io::Result<()>>,
    _cores_awake: Option<CoresAwake>,
}

impl Instance {
    /// Opens the data folder and listens; connections are accepted when this returns.
    ///
    /// # Errors
    /// A configuration that cannot work, a data folder that is locked or damaged, an address that is in use: each names
    /// the cause.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        config.validate()?;
        let authenticator = open_users(&config)?;
        let log_config = config.log_config();
        let log = tokio::task::spawn_blocking(move || {
            Log::open(log_config, Arc::new(RealDisk::new()), Arc::new(SystemClock))
        })
        .await
        .context("opening the data folder was interrupted")?
        .with_context(|| format!("cannot open the data folder {}", config.data_dir.display()))?;
        let store = open_store(&config)?;
        let place = store.name().to_owned();
        let tiered = TieredLog::open(log, store, config.cold_config())
            .await
            .with_context(|| format!("cannot open the cold records in {place}"))?;
        tiered.spawn_maintenance();
        let engine = QueryEngine::new(Arc::clone(&tiered), config.query_config())
            .context("cannot start the query engine")?;

        let metrics = Metrics::new(Arc::clone(&tiered), Arc::clone(&engine));
        let http = Http::new(
            Arc::clone(&metrics),
            &engine,
            config.server.handshake_timeout_ms,
            authenticator.clone(),
        );
        let handler: Arc<dyn HttpHandler> = Arc::new(http);
        let server = Server::bind(
            config.server_config(),
            Arc::clone(&tiered),
            Some(handler),
            authenticator,
        )
        .await?;
        engine.allow_changes(Arc::new(ServedTopics(server.topics())));
        // With the ports that were really taken.
        let shown = Config {
            listen: server.local_addresses().to_vec(),
            ..config.clone()
        };
        engine.show_settings(shown.settings().collect());
        let counters = server.counters();
        metrics.watch(Arc::clone(&counters));
        let addresses = server.local_addresses().to_vec();
        let shutdown = ShutdownTrigger::new();
        let sockets = tokio::spawn(server.run(shutdown.signal()));
        let keep_awake = config.server.keep_cores_awake;
        Ok(Self {
            _cores_awake: keep_awake.then(CoresAwake::request).flatten(),
            tiered,
            engine,
            counters,
            addresses,
            shutdown,
            sockets,
        })
    }

    /// Where it listens, with the ports that were really taken.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The log, hot and cold.
    #[must_use]
    pub fn tiered(&self) -> &Arc<TieredLog> {
        &self.tiered
    }

    /// SQL.
    #[must_use]
    pub fn engine(&self) -> &Arc<QueryEngine> {
        &self.engine
    }

    /// What the sockets did.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Waits until the sockets end by themselves, which they do only on an error.
    ///
    /// # Errors
    /// That error.
    pub async fn ended(&mut self) -> anyhow::Result<()> {
        (&mut self.sockets)
            .await
            .context("the server's task was interrupted")?
            .context("the server ended")
    }

    /// Stops accepting, lets work in progress finish within the grace time, ends cooling, syncs the log and unlocks the folder.
    ///
    /// # Errors
    /// The first thing that failed; everything after it was still tried.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.shutdown.trigger();
        let sockets = if self.sockets.is_finished() {
            Ok(())
        } else {
            self.ended().await
        };
        let log = self.tiered.shutdown().await;
        sockets?;
        log.context("cannot close the log in order")
    }
}

/// The users who are served, if not everybody is.
fn open_users(config: &Config) -> anyhow::Result<Option<Authenticator>> {
    let path = Path::new(&config.server.users_file);
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let authenticator = Authenticator::open(path)
        .context("`server.users_file` cannot be used (`basalt user add` makes one)")?;
    Ok(Some(authenticator))
}

/// The store of cold records, of which nothing is asked yet.
fn open_store(config: &Config) -> anyhow::Result<ColdStore> {
    let cold_dir = config.cold_dir();
    let Some(settings) = config.store_config() else {
        return ColdStore::local(&cold_dir).with_context(|| {
            format!(
                "cannot open the folder of Parquet files {}",
                cold_dir.display()
            )
        });
    };
    let holds_files = holds_files(&cold_dir)
        .with_context(|| format!("cannot look into {}", cold_dir.display()))?;
    ensure!(
        !holds_files,
        "the cold records of this data folder are in {}, not in {}: leave `cold.store` empty, or copy that folder there and then \
         remove it",
        cold_dir.display(),
        config.cold.store
    );
    ColdStore::open(&settings).context("cannot open the store of Parquet files")
}

#[cfg(test)]
mod tests;
