//! What each command of a client does. A server is reached through `basalt-client`, SQL through Flight SQL.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod consume;
pub(crate) mod demo;
pub(crate) mod group;
pub(crate) mod position;
pub(crate) mod produce;
pub(crate) mod schema;
pub(crate) mod sql;
pub(crate) mod topic;

use anyhow::Context as _;
use basalt_client::{Client, ClientConfig};
use clap::Args;

/// `--server`, on every command of a client.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArg {
    /// Address of the server.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "BASALT_SERVER",
        default_value = "127.0.0.1:9092"
    )]
    pub(crate) server: String,
}

impl ServerArg {
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        let config = ClientConfig {
            address: self.server.clone(),
            ..ClientConfig::default()
        };
        Client::connect(config)
            .await
            .with_context(|| self.unreachable())
    }

    /// What to say, and to do, when nobody answers.
    pub(crate) fn unreachable(&self) -> String {
        format!(
            "cannot reach a server at {} (start one with `basalt serve`, or name another with --server HOST:PORT)",
            self.server
        )
    }
}

/// `KEY=VALUE`, as `--config` takes it.
pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("give NAME=VALUE, for example retention_bytes=1000000000".to_owned()),
    }
}
