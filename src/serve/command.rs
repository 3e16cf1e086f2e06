//! `basalt serve`.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use super::{Instance, Signals};
use crate::config::{Config, ConfigError, Overrides};

/// Arguments of `basalt serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Settings come from --config FILE, are overridden by BASALT_* variables, and those by flags.

Examples:
  basalt serve
  basalt serve --data /var/lib/basalt --listen 0.0.0.0:9092
  basalt serve --set log.segment_bytes=16777216 --set cold.hot_bytes=67108864
  basalt serve --print-config > basalt.toml     every setting with its meaning; then:
  basalt serve --config basalt.toml
  BASALT_LOG=debug basalt serve                 more of the log on stderr")]
pub(crate) struct ServeArgs {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE", env = "BASALT_CONFIG")]
    config: Option<PathBuf>,
    /// Data folder; made if it is missing [default: ./basalt-data].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Address to listen on, any number of times; port 0 takes a free one [default: 127.0.0.1:9092].
    #[arg(long, value_name = "HOST:PORT")]
    listen: Vec<String>,
    /// Any setting of the configuration, any number of times.
    #[arg(long, value_name = "SECTION.NAME=VALUE")]
    set: Vec<String>,
    /// Print the settings that would be used, each with its meaning, and exit.
    #[arg(long)]
    print_config: bool,
}

/// Runs until a signal.
pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<()> {
    let overrides = Overrides {
        data_dir: args.data,
        listen: resolve(&args.listen)?,
        settings: args.set,
    };
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        Some((
            name.into_string().ok()?,
            value.to_string_lossy().into_owned(),
        ))
    });
    let loaded = Config::load(args.config.as_deref(), environment, &overrides)?;
    if args.print_config {
        return crate::output::say(&loaded.config.to_commented_toml());
    }
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    raise_descriptor_limit();
    // Before the folder is opened: a signal during a long recovery is kept and obeyed after it.
    let mut signals = Signals::new()?;
    let data_dir = loaded.config.data_dir.clone();
    let mut instance = Instance::start(loaded.config).await?;
    announce(&instance)?;
    tracing::info!(data_dir = %data_dir.display(), addresses = ?instance.addresses(), "serving");
    tokio::select! {
        (name, _) = signals.next() => tracing::info!("{name}: stopping"),
        ended = instance.ended() => {
            let stopped = instance.stop().await;
            ended?;
            stopped?;
            anyhow::bail!("the server ended by itself");
        }
    }
    signals.exit_on_next();
    instance.stop().await?;
    tracing::info!("stopped");
    Ok(())
}

/// Takes as many file descriptors as the system grants without asking: segments and connections need them.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => {
            tracing::info!(before = ?limit.current, now = ?limit.maximum, "the limit of file descriptors is raised");
        }
        Err(error) => {
            tracing::warn!(%error, current = ?limit.current, "cannot raise the limit of file descriptors");
        }
    }
}

/// Host names become addresses here; the configuration knows addresses only.
fn resolve(listen: &[String]) -> anyhow::Result<Vec<String>> {
    use std::net::ToSocketAddrs as _;
    let mut addresses = Vec::new();
    for name in listen {
        let found = name.to_socket_addrs().map_err(|_| ConfigError::Value {
            origin: "--listen".to_owned(),
            value: name.clone(),
            expected: "HOST:PORT of this machine, for example 127.0.0.1:9092",
        })?;
        // `localhost` is often both ::1 and 127.0.0.1.
        for address in found.map(|address| address.to_string()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    Ok(addresses)
}

/// The one line on stdout. A program that started us waits for it.
fn announce(instance: &Instance) -> anyhow::Result<()> {
    let addresses: Vec<_> = instance
        .addresses()
        .iter()
        .map(ToString::to_string)
        .collect();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "basalt {} listening on {}",
        env!("CARGO_PKG_VERSION"),
        addresses.join(", ")
    )
    .and_then(|()| out.flush())
    .context("cannot write the addresses to stdout")
}
