//! What this machine can do without any server: the figures to which those of a server are compared.
//!
//! Each is measured several times, and the median counts. They are measured one after the other on a machine that must be
//! left alone meanwhile; measure them in the same run as a load (`--limits`), since machines, above all rented ones,
//! change from hour to hour.

mod disk;
mod memory;
mod network;
mod relay;
mod round_trip;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::error::LoadError;
use crate::stats::{LatencySummary, median_by, rounded};

/// Bytes of a record frame with a payload of 100 bytes and no key.
const FRAME_BYTES: usize = 129;

/// How limits are measured.
#[derive(Clone, Debug, Args)]
pub struct LimitsArgs {
    /// Folder whose disk is measured [default: the folder for temporary files].
    #[arg(long = "limits-dir", value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Bytes of the sequential write to the disk.
    #[arg(long = "limits-disk-bytes", value_name = "BYTES", default_value_t = DEFAULT_DISK_BYTES, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    pub disk_bytes: u64,
    /// Times that each is measured.
    #[arg(long = "limits-rounds", value_name = "N", default_value_t = DEFAULT_ROUNDS, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
}

const DEFAULT_DISK_BYTES: u64 = 2_000_000_000;
const DEFAULT_ROUNDS: u32 = 3;

impl Default for LimitsArgs {
    /// What the command line takes when nothing is said.
    fn default() -> Self {
        Self {
            dir: None,
            disk_bytes: DEFAULT_DISK_BYTES,
            rounds: DEFAULT_ROUNDS,
        }
    }
}

/// `basalt bench limits`
#[derive(Clone, Debug, Args)]
pub struct LimitsCommand {
    /// Where and how often.
    #[command(flatten)]
    pub args: LimitsArgs,
    /// Print one JSON line instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// What the machine can do. MB are 10^6 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Limits {
    /// Loopback TCP: 256-KiB writes, a receiver that reads.
    pub tcp_mb_per_s: f64,
    /// `sendfile` of a cached file in slices of 1 MiB, a receiver that reads.
    pub sendfile_mb_per_s: f64,
    /// The same in slices of 256 KiB.
    pub sendfile_256k_mb_per_s: f64,
    /// Slices of 1 MiB, a receiver that reads and walks the header of each 129-byte frame.
    pub sendfile_walk_mb_per_s: f64,
    /// The frames of that.
    pub sendfile_walk_records_per_s: f64,
    /// Copies of 129 bytes, one after the other, into a shared mapping that is in memory.
    pub memcpy_mb_per_s: f64,
    /// The copies of that.
    pub memcpy_records_per_s: f64,
    /// `fdatasync` after 4 KiB that made the file longer.
    pub fdatasync_appended_p50_us: f64,
    /// Of those, 99% are not above.
    pub fdatasync_appended_p99_us: f64,
    /// `fdatasync` after 4 KiB where the file had room but no data.
    pub fdatasync_fallocated_p50_us: f64,
    /// Of those, 99% are not above.
    pub fdatasync_fallocated_p99_us: f64,
    /// `fdatasync` after 4 KiB where data was before.
    pub fdatasync_prewritten_p50_us: f64,
    /// Of those, 99% are not above.
    pub fdatasync_prewritten_p99_us: f64,
    /// One long write with one `fdatasync` at its end.
    pub disk_write_mb_per_s: f64,
    /// 129 bytes there and back over loopback TCP, both sides blocking.
    pub round_trip_us: f64,
    /// Of those, 99% are not above.
    pub round_trip_p99_us: f64,
    /// The same with an echo on a multi-threaded tokio runtime.
    pub round_trip_tokio_us: f64,
    /// Of those, 99% are not above.
    pub round_trip_tokio_p99_us: f64,
    /// From when 129 bytes are due, 1,000 times a second, to when they came through a relay that keeps nothing.
    pub relay_1k_p50_us: f64,
    /// Of those, 99% are not above.
    pub relay_1k_p99_us: f64,
    /// The same, 100,000 times a second.
    pub relay_100k_p50_us: f64,
    /// Of those, 99% are not above.
    pub relay_100k_p99_us: f64,
    /// Of those, 99.9% are not above.
    pub relay_100k_p999_us: f64,
    /// 10,000 times a second through a relay that writes over old data and calls `fdatasync` before it hands on.
    pub synced_relay_10k_p50_us: f64,
    /// Of those, 99% are not above.
    pub synced_relay_10k_p99_us: f64,
    /// The same, 100,000 times a second.
    pub synced_relay_100k_p50_us: f64,
    /// Of those, 99% are not above.
    pub synced_relay_100k_p99_us: f64,
}

/// Two figures of one measurement: the main one comes first.
type Pair = (f64, f64);

/// Measures all of them; takes about half a minute, and twice `disk_bytes` of the disk at most. `say` is told what comes next.
///
/// # Errors
/// [`LoadError::Io`] says what could not be done.
pub fn measure(args: &LimitsArgs, say: &mut dyn FnMut(&str)) -> Result<Limits, LoadError> {
    let folder = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new()
        .prefix("basalt-limits-")
        .tempdir_in(folder)
        .map_err(LoadError::io("make a folder to measure the disk in"))?;
    let folder: &Path = folder.path();
    let mut median = |what: &'static str, measure: &mut dyn FnMut() -> std::io::Result<Pair>| {
        say(what);
        let rounds = (0..args.rounds)
            .map(|_| measure())
            .collect::<Result<Vec<_>, _>>();
        let rounds = rounds.map_err(LoadError::io(what))?;
        Ok::<Pair, LoadError>(median_by(rounds, |pair| pair.0).unwrap_or_default())
    };
    let tcp = median("measure loopback TCP", &mut network::tcp)?;
    let cached = network::CachedFile::new(folder).map_err(LoadError::io("write a file to send"))?;
    let sendfile = median("measure sendfile", &mut || cached.send(1 << 20, false))?;
    let sendfile_256k = median("measure sendfile in small slices", &mut || {
        cached.send(256 << 10, false)
    })?;
    let walk = median("measure sendfile and walking", &mut || {
        cached.send(1 << 20, true)
    })?;
    drop(cached);
    let memcpy = median("measure copying", &mut || memory::copy(folder))?;
    let mut synced = |what, kind| median(what, &mut || disk::sync_latency(folder, kind));
    let appended = synced("measure fdatasync of appends", disk::Room::Appended)?;
    let fallocated = synced(
        "measure fdatasync in allocated room",
        disk::Room::Fallocated,
    )?;
    let prewritten = synced("measure fdatasync of overwrites", disk::Room::Prewritten)?;
    let write = median("measure writing to the disk", &mut || {
        disk::write_bandwidth(folder, args.disk_bytes)
    })?;
    let blocking = median("measure round trips", &mut round_trip::blocking)?;
    let tokio = median("measure round trips with tokio", &mut round_trip::tokio)?;
    let mut relayed = |what: &'static str, rate, folder| {
        say(what);
        let rounds = (0..args.rounds)
            .map(|_| relay::latency(rate, folder))
            .collect::<Result<Vec<_>, _>>();
        let rounds = rounds.map_err(LoadError::io(what))?;
        let median = |key: fn(&LatencySummary) -> f64| {
            let median = median_by(rounds.clone(), key);
            rounded(median.as_ref().map_or(0.0, key), 1)
        };
        Ok::<_, LoadError>([
            median(|latency| latency.p50_us),
            median(|latency| latency.p99_us),
            median(|latency| latency.p999_us),
        ])
    };
    let relay_1k = relayed("measure a relay at 1,000/s", 1_000, None)?;
    let relay_100k = relayed("measure a relay at 100,000/s", 100_000, None)?;
    let disk = Some(folder);
    let synced_10k = relayed("measure a relay that syncs at 10,000/s", 10_000, disk)?;
    let synced_100k = relayed("measure a relay that syncs at 100,000/s", 100_000, disk)?;
    Ok(Limits {
        tcp_mb_per_s: rounded(tcp.0, 0),
        sendfile_mb_per_s: rounded(sendfile.0, 0),
        sendfile_256k_mb_per_s: rounded(sendfile_256k.0, 0),
        sendfile_walk_mb_per_s: rounded(walk.0, 0),
        sendfile_walk_records_per_s: rounded(walk.1, 0),
        memcpy_mb_per_s: rounded(memcpy.0, 0),
        memcpy_records_per_s: rounded(memcpy.1, 0),
        fdatasync_appended_p50_us: rounded(appended.0, 1),
        fdatasync_appended_p99_us: rounded(appended.1, 1),
        fdatasync_fallocated_p50_us: rounded(fallocated.0, 1),
        fdatasync_fallocated_p99_us: rounded(fallocated.1, 1),
        fdatasync_prewritten_p50_us: rounded(prewritten.0, 1),
        fdatasync_prewritten_p99_us: rounded(prewritten.1, 1),
        disk_write_mb_per_s: rounded(write.0, 0),
        round_trip_us: rounded(blocking.0, 1),
        round_trip_p99_us: rounded(blocking.1, 1),
        round_trip_tokio_us: rounded(tokio.0, 1),
        round_trip_tokio_p99_us: rounded(tokio.1, 1),
        relay_1k_p50_us: relay_1k[0],
        relay_1k_p99_us: relay_1k[1],
        relay_100k_p50_us: relay_100k[0],
        relay_100k_p99_us: relay_100k[1],
        relay_100k_p999_us: relay_100k[2],
        synced_relay_10k_p50_us: synced_10k[0],
        synced_relay_10k_p99_us: synced_10k[1],
        synced_relay_100k_p50_us: synced_100k[0],
        synced_relay_100k_p99_us: synced_100k[1],
    })
}

/// Measures, and gives what is to be printed: a table, or a JSON line. What is measured is told on stderr.
///
/// # Errors
/// [`LoadError::Io`] says what could not be done.
pub fn run(command: &LimitsCommand) -> Result<String, LoadError> {
    let limits = measure(&command.args, &mut |what| eprintln!("{what}"))?;
    Ok(if command.json {
        limits.to_json()
    } else {
        limits.table()
    })
}

impl Limits {
    /// One JSON line, without line feed.
    #[must_use]
    pub fn to_json(self) -> String {
        // A struct of numbers always has a form in JSON.
        serde_json::to_string(&self).unwrap_or_default()
    }

    /// A table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = String::new();
        let mut line = |name: &str, figures: String| {
            // A string takes all that is written to it.
            let _ = writeln!(table, "{name:<44} {figures}");
        };
        let million = |records: f64| records / 1e6;
        line(
            "loopback TCP, 256-KiB writes",
            format!("{:.0} MB/s", self.tcp_mb_per_s),
        );
        line(
            "sendfile of a cached file, 1-MiB slices",
            format!("{:.0} MB/s", self.sendfile_mb_per_s),
        );
        line(
            "sendfile of a cached file, 256-KiB slices",
            format!("{:.0} MB/s", self.sendfile_256k_mb_per_s),
        );
        line(
            "sendfile, and walking 129-byte frames",
            format!(
                "{:.0} MB/s, {:.1} million records/s",
                self.sendfile_walk_mb_per_s,
                million(self.sendfile_walk_records_per_s)
            ),
        );
        line(
            "copying 129-byte records into a mapped file",
            format!(
                "{:.0} MB/s, {:.1} million records/s",
                self.memcpy_mb_per_s,
                million(self.memcpy_records_per_s)
            ),
        );
        let latency = |p50: f64, p99: f64| format!("p50 {p50:.1} us, p99 {p99:.1} us");
        line(
            "fdatasync after appending 4 KiB",
            latency(
                self.fdatasync_appended_p50_us,
                self.fdatasync_appended_p99_us,
            ),
        );
        line(
            "fdatasync of 4 KiB in allocated room",
            latency(
                self.fdatasync_fallocated_p50_us,
                self.fdatasync_fallocated_p99_us,
            ),
        );
        line(
            "fdatasync of 4 KiB over old data",
            latency(
                self.fdatasync_prewritten_p50_us,
                self.fdatasync_prewritten_p99_us,
            ),
        );
        line(
            "sequential write, one fdatasync at the end",
            format!("{:.0} MB/s", self.disk_write_mb_per_s),
        );
        line(
            "round trip of 129 bytes, blocking",
            latency(self.round_trip_us, self.round_trip_p99_us),
        );
        line(
            "round trip of 129 bytes, tokio",
            latency(self.round_trip_tokio_us, self.round_trip_tokio_p99_us),
        );
        line(
            "end to end through a bare relay, 1,000/s",
            latency(self.relay_1k_p50_us, self.relay_1k_p99_us),
        );
        line(
            "end to end through a bare relay, 100,000/s",
            format!(
                "{}, p99.9 {:.1} us",
                latency(self.relay_100k_p50_us, self.relay_100k_p99_us),
                self.relay_100k_p999_us
            ),
        );
        line(
            "through a relay that syncs, 10,000/s",
            latency(self.synced_relay_10k_p50_us, self.synced_relay_10k_p99_us),
        );
        line(
            "through a relay that syncs, 100,000/s",
            latency(self.synced_relay_100k_p50_us, self.synced_relay_100k_p99_us),
        );
        table.truncate(table.trim_end().len());
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_of_this_machine_is_more_than_nothing() {
        let args = LimitsArgs {
            dir: None,
            disk_bytes: 4 << 20,
            rounds: 1,
        };
        let mut steps = 0;
        let limits = measure(&args, &mut |_| steps += 1).unwrap();
        assert_eq!(steps, 15);
        let serde_json::Value::Object(figures) = serde_json::to_value(limits).unwrap() else {
            panic!("not an object");
        };
        assert_eq!(figures.len(), 27);
        for (name, figure) in figures {
            assert!(figure.as_f64().unwrap() > 0.0, "{name}");
        }
        assert_eq!(limits.table().lines().count(), 15);
    }
}
