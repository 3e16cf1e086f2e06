//! Bit rot: a flipped bit in a file that was on the disk, found at the next start.

use super::history::History;
use super::reading::read_around_damage;
use super::support::data_dir;
use crate::check::CheckedFolder;
use crate::disk::sim::SimDisk;
use crate::{Log, ManualClock};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A frame's header, and what a block may exceed its size by: an append that it was open for.
const FRAME_HEADER_BYTES: usize = 29;

impl History<'_> {
    /// Flips a bit of a file and starts the log: what is served is as it was sent, and what a flipped bit in a segment costs
    /// is that block, which is reported.
    pub(super) fn rot(&mut self) {
        self.tally.rotten += 1;
        self.set_full(false);
        self.restart(false);
        // A recovered folder: all in it is on the disk.
        let disk = self.disk.power_loss(&mut self.choices.rng());
        let Some((path, bit)) = self.flip(&disk) else {
            return;
        };
        self.note(format!("bit {bit} of {} flips", path.display()));
        let found_by_check = findings(&disk);
        let config = self.config.clone();
        let clock = Arc::new(ManualClock::new(1_000));
        let log = match Log::open(config, Arc::new(disk.clone()), clock) {
            Ok(log) => log,
            Err(error) => {
                let catalogue = path.ends_with("catalogue");
                assert!(catalogue && found_by_check > 0, "{error:?}");
                return;
            }
        };
        if path.ends_with("catalogue") {
            // Its last entry is put aside where it does not read, and a topic with it.
            assert!(found_by_check > 0);
            return;
        }
        let mut lost_bytes = 0;
        for (topic, number) in self.everywhere() {
            let model = &self.topics[topic];
            let opened = log.topic(&model.name).unwrap();
            let partition = opened
                .partition(self.partition((topic, number)).id())
                .unwrap();
            let (found, refused) = read_around_damage(&partition);
            model.partitions[number].only_sent(&found);
            self.tally.refused_reads += refused.len() as u64;
            for (offset, payload) in model.partitions[number].durable() {
                if found.contains_key(&offset) {
                    continue;
                }
                lost_bytes += payload.len() + FRAME_HEADER_BYTES;
                let said_so = refused.iter().any(|refused| refused.contains(&offset));
                let by_its_index = path.extension().is_some_and(|suffix| suffix == "idx");
                assert!(
                    said_so || by_its_index,
                    "offset {offset} of {topic}/{number} is gone without a word"
                );
            }
        }
        assert!(lost_bytes == 0 || found_by_check > 0, "check found nothing");
        if path.extension().is_some_and(|suffix| suffix == "seg") {
            let block = self.config.block_bytes as usize + 4 * (2508 + FRAME_HEADER_BYTES);
            assert!(lost_bytes <= block, "{lost_bytes} bytes for one bit");
        }
        disk.stop_after(0);
    }

    fn flip(&mut self, disk: &SimDisk) -> Option<(PathBuf, usize)> {
        let rots = |path: &PathBuf| {
            let suffix = path
                .extension()
                .is_some_and(|suffix| suffix == "seg" || suffix == "idx" || suffix == "wal");
            suffix || path.ends_with("catalogue")
        };
        let mut paths: Vec<PathBuf> = disk.paths().into_iter().filter(rots).collect();
        let segments = |path: &PathBuf| path.extension().is_some_and(|suffix| suffix == "seg");
        if self.choices.below(2) == 0 && paths.iter().any(segments) {
            paths.retain(segments);
        }
        let path = paths.get(self.choices.below(paths.len()))?.clone();
        let bits = length(disk, &path) * 8;
        let bit = self.choices.rng().below(bits);
        if bits > 0 {
            disk.change(&path, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        }
        (bits > 0).then_some((path, bit))
    }
}

fn length(disk: &SimDisk, path: &Path) -> usize {
    super::support::length(disk, path)
}

/// How much `basalt check` finds wrong; a catalogue that does not read counts.
fn findings(disk: &SimDisk) -> usize {
    let folder = disk.beside();
    let checked = CheckedFolder::lock(&folder, &data_dir()).unwrap();
    checked
        .check(|_| ())
        .map_or(1, |report| report.findings.len())
}
