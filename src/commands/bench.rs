//! `basalt bench`: the load generator of `basalt-load` on the command line. What it measures, and how, is said there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, ensure};
use basalt_load::{Count, LoadArgs, Mode, Report, Standing, limits};

use crate::output::say;
use crate::progress::Progress;
use crate::serve::Signals;

pub(crate) use basalt_load::LoadCommand as BenchCommand;

pub(crate) async fn run(command: BenchCommand) -> anyhow::Result<()> {
    let (mode, args) = match command {
        BenchCommand::Produce(args) => (Mode::Produce, args),
        BenchCommand::Consume(args) => (Mode::Consume, args),
        BenchCommand::Both(args) => (Mode::Both, args),
        BenchCommand::E2e(args) => (Mode::E2e, args),
        BenchCommand::Limits(command) => {
            let measured = tokio::task::spawn_blocking(move || limits::run(&command)).await;
            return say(&measured.context("the measurement was interrupted")??);
        }
    };
    let report = load(mode, args).await?;
    say(&report.to_json()?)?;
    ensure!(
        report.is_complete(),
        "records are missing or wrong: see the counts above"
    );
    Ok(())
}

/// Runs the load on threads of its own; a signal stops it, and lets it delete its topic.
async fn load(mode: Mode, args: Box<LoadArgs>) -> anyhow::Result<Report> {
    let mut signals = Signals::new()?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = tokio::task::spawn_blocking({
        let stop = Arc::clone(&stop);
        move || basalt_load::run(mode, &args, &mut Shown::default(), &stop)
    });
    let ended = tokio::select! {
        ended = &mut load => ended,
        (name, _) = signals.next() => {
            stop.store(true, Ordering::Relaxed);
            signals.exit_on_next();
            eprintln!("{name}: stopping the bench");
            load.await
        }
    };
    Ok(ended.context("the bench was interrupted")??)
}

/// Shows each phase of a load as the other commands show their work.
#[derive(Default)]
struct Shown {
    bar: Option<Progress>,
    shown: Count,
}

impl basalt_load::Progress for Shown {
    fn update(&mut self, standing: &Standing) {
        let bar = self
            .bar
            .get_or_insert_with(|| Progress::new(standing.what, None, false));
        let (produced, consumed) = (standing.produced, standing.consumed);
        let records = produced.records + consumed.records;
        let frame_bytes = produced.frame_bytes + consumed.frame_bytes;
        bar.add(
            records - self.shown.records,
            frame_bytes - self.shown.frame_bytes,
        );
        self.shown = Count {
            records,
            frame_bytes,
        };
    }

    fn say(&mut self, line: &str) {
        eprintln!("{line}");
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.clear();
        }
        self.shown = Count::default();
    }
}
