//! A server in a process of its own, and commands against it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Stopped when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(data_dir: &Path, settings: &[&str]) -> Self {
        let mut command = basalt();
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(data_dir);
        for setting in settings {
            command.args(["--set", setting]);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output"))
            .read_line(&mut line)
            .expect("its first line");
        let address = line.trim().rsplit(' ').next().unwrap_or_default();
        Self {
            address: address.to_owned(),
            child,
        }
    }

    /// The process, as `/proc` calls it.
    pub(crate) fn process(&self) -> String {
        self.child.id().to_string()
    }

    /// Starts a command against it.
    pub(crate) fn spawn(&self, arguments: &[&str]) -> Child {
        basalt()
            .args(arguments)
            .args(["--server", &self.address])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command starts")
    }

    /// Runs a command against it to its end; what it printed.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.spawn(arguments).wait_with_output().expect("an end");
        assert!(output.status.success(), "{arguments:?}: {}", output.status);
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let id = rustix::process::Pid::from_child(&self.child);
        // It may have ended by itself; either way there is nothing more to do.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// The binary, without the settings of whoever runs the bench.
fn basalt() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_basalt"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("BASALT_")) {
        command.env_remove(name);
    }
    command.env("BASALT_LOG", "warn");
    command
}

/// A number in a line of JSON.
pub(crate) fn number(json: &str, field: &str) -> f64 {
    let line = json.lines().last().expect("a line");
    let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
    value[field].as_f64().expect("a number")
}
