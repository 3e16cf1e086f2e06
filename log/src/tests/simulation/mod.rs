//! Random histories against a model: appends to several partitions at both levels, group commits over one write-ahead log,
//! settling, sealing, checkpoints, releases, topics that are deleted and made anew, full disks and failing operations; other
//! threads' work in the middle of syncs; and ends of the process and of the machine between any two operations on the disk,
//! those of recovery among them. At the end of a history, bit rot.
//!
//! After each recovery, for every partition:
//! - no record that was acknowledged or shown, at a level that survives what happened, is gone, altered or renumbered;
//! - nothing is served that was not sent there, and nothing twice;
//! - the high watermark, and the offset the log goes on at, are no lower than what was seen;
//! - everything that is served survives from now on, whatever it was promised before;
//! - `basalt check` finds nothing wrong in the folder, and counts the frames that are served;
//! - a read that begins anywhere and asks for little gives the whole frame there, and one that stands still keeps its bytes
//!   (PUB-09, PUB-10, PUB-18, PUB-19).
//!
//! And at all times: without a failing operation no partition stops, be the disk full or not.
//!
//! A history is repeated by `BASALT_SIM_SEED=<seed> BASALT_SIM_COUNT=1`; a large count runs for long.

use super::support;

mod choices;
mod crash;
mod history;
mod interleave;
mod model;
mod reading;
mod rot;
mod tally;
mod topics;

use choices::Choices;
use history::History;
use tally::Tally;

const STEPS: u32 = 150;

fn run_history(choices: Choices<'_>, steps: u32) -> (Vec<String>, Tally) {
    let mut history = History::new(choices);
    for _ in 0..steps {
        if history.is_over() {
            break;
        }
        history.step();
    }
    history.end()
}

/// A history that these bytes decide: what the fuzzer runs.
pub fn run_bytes(bytes: &[u8]) {
    run_history(Choices::Bytes(bytes), 400);
}

#[cfg(test)]
mod tests;
