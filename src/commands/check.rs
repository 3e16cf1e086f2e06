//! `basalt check`: everything that can be verified about a data folder while no server uses it. Nothing is changed.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use arrow::array::{StringArray, UInt64Array};
use basalt_columnar::check::check_cold;
use basalt_columnar::recorded_store;
use basalt_log::check::CheckedFolder;
use basalt_log::{Finding, RealDisk};
use clap::Args;

use crate::config::Config;
use crate::output::{Format, print_listing};
use crate::stopwatch::Stopwatch;

/// Arguments of `basalt check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Verified are: the checksum of every block, that every frame is whole and offsets go on without a
hole, segments against their index, the catalogue and the offsets of groups, manifests against the
Parquet files they name, their footers, and every row. Findings go to stdout, each with file and
position; exit code 1 if there is any. Stop the server first.

Examples:
  basalt check ./basalt-data
  basalt check ./basalt-data --format json")]
pub(crate) struct CheckArgs {
    /// Data folder.
    dir: PathBuf,
    /// How findings are printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(crate) async fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let took = Stopwatch::start();
    let dir = &args.dir;
    ensure!(dir.is_dir(), "{} is no folder", dir.display());
    // Taking the lock would make a file in a folder that is none of ours.
    ensure!(
        dir.join("catalogue").exists(),
        "{} is no data folder of Basalt: it has no catalogue",
        dir.display()
    );
    let disk = RealDisk::new();
    let folder = CheckedFolder::lock(&disk, dir).with_context(|| {
        format!(
            "cannot check {} (stop the server that uses it first)",
            dir.display()
        )
    })?;
    let (mut report, partitions) = tokio::task::block_in_place(|| -> anyhow::Result<_> {
        Ok((folder.check(|_| ())?, folder.partitions()?))
    })
    .with_context(|| format!("cannot check {}", dir.display()))?;
    let cold_dir = Config {
        data_dir: dir.clone(),
        ..Config::default()
    }
    .cold_dir();
    // The folder stays locked until the cold part is checked too.
    let owners: Vec<_> = partitions
        .into_iter()
        .map(|known| (known.topic, known.topic_id.0, known.partition))
        .collect();
    report.findings.extend(check_cold(&cold_dir, &owners).await);
    let elsewhere = recorded_store(dir).with_context(|| {
        format!(
            "cannot tell where the cold records of {} are",
            dir.display()
        )
    })?;
    if let Some(store) = elsewhere {
        eprintln!(
            "{}: the cold records are in {store}, which is not checked",
            dir.display()
        );
    }
    drop(folder);
    report
        .findings
        .sort_by(|one, other| (&one.path, one.position).cmp(&(&other.path, other.position)));
    let looked_at = format!(
        "{} topic(s), {} partition(s), {} segment(s) with {} records, and the Parquet files, in {:.1} s",
        report.topics,
        report.partitions,
        report.segments,
        report.records,
        took.elapsed().as_secs_f64()
    );
    if report.findings.is_empty() {
        eprintln!("{}: nothing is wrong: {looked_at}", dir.display());
        return Ok(());
    }
    print(args.format, &report.findings)?;
    bail!(
        "{}: {} finding(s): {looked_at}",
        dir.display(),
        report.findings.len()
    );
}

fn print(format: Format, findings: &[Finding]) -> anyhow::Result<()> {
    let paths = findings
        .iter()
        .map(|finding| finding.path.display().to_string());
    let positions = findings.iter().map(|finding| finding.position);
    let whats = findings.iter().map(|finding| finding.what.as_str());
    print_listing(
        format,
        vec![
            ("file", Arc::new(StringArray::from_iter_values(paths))),
            (
                "position",
                Arc::new(UInt64Array::from_iter_values(positions)),
            ),
            ("finding", Arc::new(StringArray::from_iter_values(whats))),
        ],
    )
}
