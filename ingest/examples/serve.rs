//! The native protocol alone, without SQL: a server that builds in a minute, for measuring and profiling.
//!
//! `cargo run --release -p basalt-ingest --example serve -- DATA [HOST:PORT]`

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use basalt_columnar::{ColdConfig, ColdStore, TieredLog};
use basalt_ingest::{Server, ServerConfig, ShutdownTrigger};
use basalt_log::{Log, LogConfig, RealDisk, SystemClock};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let data = PathBuf::from(arguments.next().ok_or("usage: serve DATA [HOST:PORT]")?);
    let listen = arguments
        .next()
        .map_or(Ok(SocketAddr::from(([127, 0, 0, 1], 0))), |at| at.parse())?;
    let log = Log::open(
        LogConfig::new(&data),
        Arc::new(RealDisk::new()),
        Arc::new(SystemClock),
    )?;
    let store = ColdStore::local(data.join("cold"))?;
    let tiered = TieredLog::open(log, store, ColdConfig::new(data.join("cache"))).await?;
    let config = ServerConfig {
        listen: vec![listen],
        ..ServerConfig::default()
    };
    let server = Server::bind(config, Arc::clone(&tiered), None, None).await?;
    println!("listening on {}", server.local_addresses()[0]);
    let trigger = ShutdownTrigger::new();
    let signal = trigger.signal();
    let running = tokio::spawn(server.run(signal));
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    terminated.recv().await;
    trigger.trigger();
    running.await??;
    tiered.shutdown().await?;
    Ok(())
}
