//! What the tests from outside share: a server process, the command line, the sample, a HermitMQ client.

pub(crate) mod hermitmq;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The binary under test.
pub(crate) fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_basalt"));
    // Settings of whoever runs the tests must not reach the server.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("BASALT_")) {
        command.env_remove(name);
    }
    command.env("BASALT_LOG", "warn");
    command
}

/// A server in a process of its own, on a port of the system's choosing.
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) address: String,
}

impl ServerProcess {
    pub(crate) fn start(data_dir: &Path, settings: &[&str]) -> Self {
        let mut command = binary();
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(data_dir);
        for setting in settings {
            command.args(["--set", setting]);
        }
        Self::spawn(&mut command)
    }

    /// Starts `command`, which becomes a server, and waits for its line.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("the server's first line");
        let address = line
            .trim()
            .rsplit(' ')
            .next()
            .unwrap_or_default()
            .to_owned();
        assert!(address.contains(':'), "no address in `{line}`");
        Self { child, address }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, at once.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// SIGTERM; the server finishes and must say that all went well.
    pub(crate) fn stop(mut self) {
        signal(self.id(), "TERM");
        let deadline = deadline();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                assert_eq!(status.code(), Some(0), "{status}");
                return;
            }
            assert!(now() < deadline, "the server does not stop");
            std::thread::yield_now();
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    pub(crate) fn basalt(&self, args: &[&str]) -> String {
        let output = self.try_basalt(args, b"");
        assert!(
            output.status.success(),
            "basalt {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    }

    pub(crate) fn try_basalt(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = binary()
            .args(args)
            .args(["--server", &self.address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut stdin = child.stdin.take().expect("stdin");
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || {
            // A command that reads no input closes it; what it did shows in its output.
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().expect("the command ends");
        feeder.join().expect("feeder");
        output
    }

    /// The one value that a query gives.
    pub(crate) fn sql_value(&self, query: &str) -> String {
        let text = self.basalt(&["sql", query, "--format", "csv"]);
        text.lines().nth(1).unwrap_or_default().to_owned()
    }

    /// A number from `/metrics`: the sum over all labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut stream = std::net::TcpStream::connect(&self.address).expect("connect");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answer");
        let values: Vec<f64> = text
            .lines()
            .filter(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with([' ', '{']))
            })
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        assert!(!values.is_empty(), "no metric {name} in {text}");
        let sum: f64 = values.iter().sum();
        format!("{sum:.0}").parse().expect("a whole number")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Only a test that failed, or `kill` and `stop` before, come here: nothing is left running either way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal by the system's `kill`.
pub(crate) fn signal(process: u32, name: &str) {
    let status = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(process.to_string())
        .status()
        .expect("kill runs");
    assert!(status.success());
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests of a process wait in real time"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// When waiting for something that must happen becomes a failure.
pub(crate) fn deadline() -> Instant {
    now() + Duration::from_secs(60)
}

/// The records to test with: all flights of 2013 where `BASALT_TEST_DATA` names the folder that has them, else the
/// bundled sample.
pub(crate) fn flights() -> Vec<u8> {
    match std::env::var_os("BASALT_TEST_DATA") {
        Some(folder) => {
            let path = PathBuf::from(folder).join("flights.ndjson.gz");
            let file = std::fs::File::open(&path).expect("BASALT_TEST_DATA has flights.ndjson.gz");
            let mut lines = Vec::new();
            flate2::read::MultiGzDecoder::new(file)
                .read_to_end(&mut lines)
                .expect("gzip");
            lines
        }
        None => include_bytes!("../../examples/flights.ndjson").to_vec(),
    }
}

/// Numbers from a seed, for choices that a failure must be able to repeat.
pub(crate) use basalt_log::disk::sim::SimRng;
