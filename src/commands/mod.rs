//! What each command of a client does. A server is reached through `basalt-client`, SQL through Flight SQL.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod consume;
pub(crate) mod demo;
pub(crate) mod group;
mod password;
pub(crate) mod position;
pub(crate) mod produce;
pub(crate) mod schema;
pub(crate) mod sql;
pub(crate) mod topic;
pub(crate) mod user;

use std::path::PathBuf;

use anyhow::Context as _;
use basalt_client::{Client, ClientConfig, ConnectError, Credentials};
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
    /// User to log in as, where the server asks for one. The password is in --password-file or the variable BASALT_PASSWORD, or is
    /// asked for on the terminal.
    #[arg(long, value_name = "NAME", env = "BASALT_USER")]
    user: Option<String>,
    /// File whose first line is the password.
    #[arg(long, value_name = "FILE", env = "BASALT_PASSWORD_FILE")]
    password_file: Option<PathBuf>,
}

impl ServerArg {
    /// A server that asks nobody who they are.
    pub(crate) const fn of(server: String) -> Self {
        Self {
            server,
            user: None,
            password_file: None,
        }
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        let config = ClientConfig {
            address: self.server.clone(),
            credentials: self.credentials()?,
            ..ClientConfig::default()
        };
        match Client::connect(config).await {
            // Somebody is there, and says why not.
            Err(
                error @ (ConnectError::NotLoggedIn { .. } | ConnectError::ServerUnproved { .. }),
            ) => Err(error.into()),
            connected => connected.with_context(|| self.unreachable()),
        }
    }

    /// Who to log in as, if anybody.
    pub(crate) fn credentials(&self) -> anyhow::Result<Option<Credentials>> {
        let Some(user) = self.user.clone() else {
            return Ok(None);
        };
        let password = match (&self.password_file, std::env::var("BASALT_PASSWORD")) {
            (Some(path), _) => password::of_file(path)?,
            (None, Ok(password)) => password,
            (None, Err(_)) => password::ask(&format!("Password of {user}: "))?,
        };
        Ok(Some(Credentials { user, password }))
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
