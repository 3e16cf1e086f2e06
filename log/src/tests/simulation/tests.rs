//! What runs the histories.

use basalt_proto::Offset;

use super::support::{append, open, partition, record};
use super::{Choices, STEPS, Tally, run_history};
use crate::disk::sim::{SimDisk, SimRng};
use crate::{Durability, TopicDurability};

fn run(seed: u64) -> (Vec<String>, Tally) {
    run_history(Choices::Seed(SimRng::new(seed)), STEPS)
}

fn from_environment(name: &str, default: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[test]
fn random_histories_with_crashes_and_faults_keep_every_promise() {
    let first = from_environment("BASALT_SIM_SEED", 1);
    let count = from_environment("BASALT_SIM_COUNT", 250);
    let mut sum = Tally::default();
    for seed in first..first + count {
        println!("seed {seed} (repeat with BASALT_SIM_SEED={seed} BASALT_SIM_COUNT=1)");
        sum.add(run(seed).1);
    }
    println!("{sum:?}");
    if count >= 100 {
        sum.assert_everything_happened();
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..4 {
        let (first, second) = (run(seed).0, run(seed).0);
        let differs = first.iter().zip(&second).position(|(a, b)| a != b);
        if let Some(at) = differs {
            panic!("step {at} differs: {} and {}", first[at], second[at]);
        }
        assert_eq!(first.len(), second.len());
    }
    assert_ne!(run(7).0, run(8).0);
}

#[test]
fn the_fuzzers_corpus_keeps_every_promise() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/history");
    if std::env::var_os("BASALT_WRITE_CORPUS").is_some() {
        for seed in 0..30 {
            let mut rng = SimRng::new(seed);
            let bytes: Vec<u8> = (0..1000).flat_map(|_| rng.below(256).try_into()).collect();
            std::fs::write(format!("{corpus}/random-{seed}"), bytes).unwrap();
        }
    }
    let mut files = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        super::run_bytes(&std::fs::read(path).unwrap());
        files += 1;
    }
    assert!(files > 0, "no file in {corpus}");
}

#[test]
fn a_released_offset_is_gone_for_good() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let first = partition(&log, TopicDurability::Fsync);
    for _ in 0..30 {
        append(&first, &record(&[1; 500]), Durability::Fsync).unwrap();
    }
    let through = first.sealed_segments();
    assert!(
        through.is_empty(),
        "without threads nothing is sealed by itself"
    );
    first.seal_active().unwrap();
    let through = first.sealed_segments()[0].end_offset;
    first.release(through).unwrap();
    assert_eq!(first.bounds().log_start_offset, through);
    assert!(through > Offset::ZERO);
}
