//! What this machine can do without a server (see `basalt_load::limits`): a table, and one JSON line behind it.
//!
//! Run `cargo bench --bench limits`. The disk is that of the folder for temporary files (`TMPDIR`); `basalt bench limits`
//! takes another folder and other sizes.

use std::process::ExitCode;

use basalt_load::limits::{self, LimitsArgs};

fn main() -> ExitCode {
    match limits::measure(&LimitsArgs::default(), &mut |what| eprintln!("{what}")) {
        Ok(limits) => {
            println!("{}\n{}", limits.table(), limits.to_json());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
