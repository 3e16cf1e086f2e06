use basalt_proto::Offset;

use super::*;
use crate::file::tests::file;
use crate::tests::support::{Random, seeds};

/// A file of so many bytes, of which the frames are as many again but for what each file has of its own.
fn sized(base: u64, frame_bytes: u64, appended_at_ns: u64) -> Arc<ColdFile> {
    Arc::new(ColdFile {
        file_bytes: FOOTER_BYTES + frame_bytes / 2,
        frame_bytes,
        appended_at_ns,
        ..file(base, base + 1, &[(base, base + 1)])
    })
}

const FOOTER_BYTES: u64 = 4 << 10;
const TARGET: u64 = 16 << 20;

fn limits(target: u64) -> Limits {
    Limits::new(target, RetentionPolicy::default(), Offset::ZERO)
}

/// What merging would make of a window.
fn merged(inputs: &[Arc<ColdFile>]) -> Arc<ColdFile> {
    let frame_bytes = inputs.iter().map(|file| file.frame_bytes).sum();
    let appended = inputs.iter().map(|file| file.appended_at_ns).max();
    sized(inputs[0].base_offset.0, frame_bytes, appended.unwrap())
}

/// Files that come one by one, merged after each as maintenance does it.
struct Simulation {
    limits: Limits,
    files: Vec<Arc<ColdFile>>,
    /// How often the frames of each file were copied at most.
    copies: Vec<u32>,
    cooled_bytes: u64,
    copied_bytes: u64,
}

impl Simulation {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            files: Vec::new(),
            copies: Vec::new(),
            cooled_bytes: 0,
            copied_bytes: 0,
        }
    }

    fn cool(&mut self, file: Arc<ColdFile>) {
        self.cooled_bytes += file.frame_bytes;
        self.files.push(file);
        self.copies.push(0);
    }

    fn merge_all(&mut self) {
        while let Some(range) = due(&self.files, &self.limits, |_| false) {
            let file = merged(&self.files[range.clone()]);
            self.copied_bytes += file.frame_bytes;
            let copies = self.copies[range.clone()].iter().max().unwrap() + 1;
            self.files.splice(range.clone(), [file]);
            self.copies.splice(range, [copies]);
        }
    }

    fn small(&self) -> usize {
        let large = |file: &&Arc<ColdFile>| file.file_bytes >= self.limits.file_bytes / 2;
        self.files.len() - self.files.iter().filter(large).count()
    }

    fn assert_bounds(&self, smallest: u64, what: &str) {
        let large = self.files.len() - self.small();
        // Frames are at most twice the bytes of their file, here.
        let levels = (2 * TARGET / smallest).ilog2();
        let bound = large + 1 + usize::try_from(levels).unwrap();
        assert!(
            self.small() <= bound,
            "{what}: {} small files beside {large} large ones, more than {bound}",
            self.small()
        );
        let copies = self.copies.iter().max().copied().unwrap_or_default();
        assert!(copies <= levels + 3, "{what}: copied {copies} times");
    }
}

#[test]
fn col_22_files_are_few_and_copies_logarithmic_whatever_the_sizes() {
    for seed in seeds(8) {
        let mut random = Random::new("col_22_files_are_few", seed);
        for shape in 0..5 {
            let mut simulation = Simulation::new(limits(TARGET));
            for at in 0..6000 {
                let frame_bytes = match shape {
                    0 => 1000,
                    1 => 1000 + random.below(100_000),
                    // Sizes of every order.
                    2 => 1000 << random.below(16),
                    // A ruler: small files between larger ones.
                    3 => 1000 << u64::from((at + 1u64).trailing_zeros()).min(13),
                    // Now and then one that is large already.
                    _ if random.one_in(50) => TARGET,
                    _ => 1000 + random.below(50_000),
                };
                simulation.cool(sized(at, frame_bytes, 0));
                if random.one_in(2) || shape == 0 {
                    simulation.merge_all();
                    simulation.assert_bounds(1000, &format!("seed {seed}, shape {shape}, at {at}"));
                }
            }
            let copied = simulation.copied_bytes as f64 / simulation.cooled_bytes as f64;
            println!(
                "shape {shape}: {} of 6000 files, {} of them small; each byte copied {copied:.2} times, at most {}",
                simulation.files.len(),
                simulation.small(),
                simulation.copies.iter().max().unwrap()
            );
            let levels = f64::from((2 * TARGET / 1000).ilog2());
            assert!(copied < levels, "seed {seed}, shape {shape}");
        }
    }
}

#[test]
fn a_window_closes_before_a_large_file_and_an_unmergeable_one() {
    let sizes = [4000, 1000, 2 * TARGET, 4000, 1000];
    let files: Vec<_> = (0..)
        .zip(sizes)
        .map(|(at, bytes)| sized(at, bytes, 0))
        .collect();
    let limits = limits(TARGET);
    assert_eq!(due(&files, &limits, |_| false), Some(0..2));
    // The last two may be joined by more, so the larger one waits until that is worth it.
    assert_eq!(due(&files[3..], &limits, |_| false), None);
    let apart = |at: u64| move |file: &ColdFile| file.base_offset.0 == at;
    assert_eq!(due(&files, &limits, apart(1)), None);
    let mut files = files;
    files.push(sized(5, 100, 0));
    assert_eq!(due(&files[3..], &limits, apart(5)), Some(0..2));
    assert_eq!(due(&files, &self::limits(0), |_| false), None);
}

#[test]
fn files_that_fill_the_target_together_are_not_joined_by_more() {
    let half = TARGET - 4 * FOOTER_BYTES;
    let files: Vec<_> = (0..4).map(|at| sized(at, half, 0)).collect();
    let limits = limits(TARGET);
    let range = due(&files, &limits, |_| false).unwrap();
    assert_eq!(range, 0..2, "three are more than the target");
    assert!(merged(&files[range]).file_bytes <= TARGET);
}

#[test]
fn col_23_a_merged_file_is_a_sixteenth_of_what_retention_keeps() {
    const HOUR_NS: u64 = 3600 * 1_000_000_000;
    let mut random = Random::new("col_23_a_merged_file", 1);
    let age = Duration::from_nanos(HOUR_NS);
    let bytes = 1_600_000;
    for (retention_bytes, retention_age) in [
        (Some(bytes), None),
        (None, Some(age)),
        (Some(bytes), Some(age)),
    ] {
        let retention = RetentionPolicy {
            bytes: retention_bytes,
            age: retention_age,
        };
        let limits = Limits::new(TARGET, retention, Offset::ZERO);
        let mut simulation = Simulation::new(limits);
        // When the first and the last record of each file were appended.
        let mut appended = vec![];
        let mut now_ns = 0;
        for at in 0..3000 {
            // Idle for a while, now and then.
            now_ns += if random.one_in(100) {
                HOUR_NS / 4
            } else {
                random.below(HOUR_NS / 100)
            };
            let first_ns = now_ns;
            now_ns += random.below(HOUR_NS / 1000);
            simulation.cool(sized(at, 500 + random.below(2000), now_ns));
            appended.push((first_ns, now_ns));
            simulation.merge_all();
        }
        let mut begins = simulation
            .files
            .iter()
            .map(|file| usize::try_from(file.base_offset.0).unwrap())
            .chain([3000]);
        let mut first = begins.next().unwrap();
        for (file, next) in simulation.files.iter().zip(begins) {
            let span_ns = appended[next - 1].1 - appended[first].0;
            let was_merged = next - first > 1;
            assert!(!was_merged || retention_bytes.is_none() || file.frame_bytes <= bytes / 16);
            assert!(!was_merged || retention_age.is_none() || span_ns <= HOUR_NS / 16);
            first = next;
        }
        assert!(
            simulation.files.len() < 2000,
            "most are merged all the same"
        );
        println!(
            "{retention_bytes:?} {retention_age:?}: {} of 3000 files",
            simulation.files.len()
        );
    }
}
