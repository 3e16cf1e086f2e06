//! `basalt bench` without the rest of `basalt`: the same arguments, the same output.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use basalt_load::{LoadCommand, LoadError, Mode, PlainLines, limits};
use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Cli {
    #[command(subcommand)]
    command: LoadCommand,
}

fn main() -> ExitCode {
    let (mode, args) = match Cli::parse().command {
        LoadCommand::Produce(args) => (Mode::Produce, args),
        LoadCommand::Consume(args) => (Mode::Consume, args),
        LoadCommand::Both(args) => (Mode::Both, args),
        LoadCommand::E2e(args) => (Mode::E2e, args),
        LoadCommand::Limits(command) => {
            return match limits::run(&command) {
                Ok(text) => {
                    println!("{text}");
                    ExitCode::SUCCESS
                }
                Err(error) => fail(&error),
            };
        }
    };
    let stop = AtomicBool::new(false);
    match basalt_load::run(mode, &args, &mut PlainLines::default(), &stop) {
        Ok(report) => {
            println!("{}", report.to_json().unwrap_or_default());
            if report.is_complete() {
                ExitCode::SUCCESS
            } else {
                eprintln!("error: records are missing or wrong: see the counts above");
                ExitCode::FAILURE
            }
        }
        Err(error @ LoadError::Args(_)) => {
            fail(&error);
            ExitCode::from(2)
        }
        Err(error) => fail(&error),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprint!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprint!(": {error}");
        cause = error.source();
    }
    eprintln!();
    ExitCode::FAILURE
}
