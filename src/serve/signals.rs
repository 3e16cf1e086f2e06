//! SIGINT and SIGTERM: the first asks to stop, the second stops.

use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A second signal within this time is the first one's echo.
const ECHO: Duration = Duration::from_millis(300);

/// The signals that ask a process to stop. From the moment this exists they no longer kill it by themselves.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?,
        })
    }

    /// Waits for one and returns its name and the status with which a shell would report a death by it.
    pub(crate) async fn next(&mut self) -> (&'static str, i32) {
        tokio::select! {
            _ = self.interrupt.recv() => ("SIGINT", 130),
            _ = self.terminate.recv() => ("SIGTERM", 143),
        }
    }

    /// From now on the next signal ends the process at once. Call it when the first one was understood.
    pub(crate) fn exit_on_next(mut self) {
        tokio::spawn(async move {
            // The same Ctrl-C may arrive twice: from the terminal and from a parent that passes it on.
            let echo = async {
                loop {
                    self.next().await;
                }
            };
            let _ = tokio::time::timeout(ECHO, echo).await;
            let (name, status) = self.next().await;
            eprintln!("{name} again: leaving at once");
            std::process::exit(status);
        });
    }
}
