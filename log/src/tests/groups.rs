//! LOG-16: what groups committed and who is in them, in the order in which it was said, whatever stops in between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use basalt_proto::{GroupName, Offset, PartitionId, TopicName};

use super::support::*;
use crate::disk::sim::{Operation, SimDisk, SimRng};
use crate::{
    Change, Commit, CommitError, Committed, Disk as _, Groups, Log, ManualClock, Topic,
    TopicConfig, TransactionChange,
};
use crate::{LogConfig, RealDisk};

fn group(number: usize) -> GroupName {
    GroupName::new(&format!("g{number}")).unwrap()
}

fn topic(log: &Log, number: usize) -> Arc<Topic> {
    let name = TopicName::new(&format!("t{number}")).unwrap();
    log.topic(&name)
        .unwrap_or_else(|| log.create_topic(&name, 4, TopicConfig::default()).unwrap())
}

fn commit(topic: &Arc<Topic>, partition: u32, offset: u64, metadata: &str) -> Commit {
    Commit {
        topic: Arc::clone(topic),
        partition: PartitionId(partition),
        offset: Offset(offset),
        metadata: metadata.to_owned(),
    }
}

/// Without threads a change is made at once.
fn store(log: &Log, group: &GroupName, change: Change) -> Result<(), CommitError> {
    let pending = log.groups().begin(group, change);
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(pending.durable())
}

/// All that is told of groups.
type Told = BTreeMap<GroupName, (Vec<(TopicName, PartitionId, Committed)>, Option<Arc<[u8]>>)>;

fn told(groups: &Groups) -> Told {
    let members: BTreeMap<_, _> = groups.members().into_iter().collect();
    let names = groups.names().into_iter();
    names
        .map(|name| {
            let of_group = (groups.of(&name), members.get(&name).cloned());
            (name, of_group)
        })
        .collect()
}

fn random_change(log: &Log, rng: &mut SimRng) -> Change {
    let offset = rng.next_u64() >> 40;
    let one = |rng: &mut SimRng| {
        let topic = topic(log, rng.below(3));
        let partition = u32::try_from(rng.below(4)).unwrap();
        let metadata = ["", "a \"text\"", "\u{1F30B}\0"][rng.below(3)];
        commit(&topic, partition, offset, metadata)
    };
    match rng.below(10) {
        0..=5 => Change::Commit((0..rng.below(4)).map(|_| one(rng)).collect()),
        6 => Change::Members(Some(vec![7; rng.below(40)])),
        7 => Change::Members(None),
        8 => {
            let of = one(rng);
            Change::Forget(vec![(of.topic.name().clone(), of.partition)])
        }
        _ => Change::Delete,
    }
}

fn took_place(groups: &Groups, group: &GroupName, change: &Change) -> bool {
    match change {
        Change::Commit(commits) => {
            // The last one of a partition counts.
            let last: BTreeMap<_, _> = commits
                .iter()
                .map(|one| ((one.topic.name(), one.partition), one))
                .collect();
            last.into_iter().all(|((topic, id), one)| {
                let found = groups.committed(group, topic, id);
                found.is_some_and(|found| {
                    (found.offset, &*found.metadata) == (one.offset, &*one.metadata)
                })
            })
        }
        Change::Members(members) => {
            let stored = groups.members().into_iter();
            let mut of_group = stored.filter(|(name, _)| name == group);
            of_group.next().map(|(_, found)| found.to_vec()) == *members
        }
        Change::Forget(partitions) => partitions
            .iter()
            .all(|(topic, id)| groups.committed(group, topic, *id).is_none()),
        Change::Delete | Change::Expire { .. } => !groups.contains(group),
    }
}

/// After any stop a log knows what it knew when its last change was acknowledged, or that and the change that was under way.
#[test]
fn a_start_knows_what_was_stored_last() {
    for seed in 0..200 {
        let mut rng = SimRng::new(seed);
        let mut disk = SimDisk::new();
        let mut log = open(&disk);
        for number in 0..3 {
            topic(&log, number);
        }
        for step in 0..40 {
            let what = format!("seed {seed}, step {step}");
            let before = told(log.groups());
            match rng.below(12) {
                0 => {
                    let topic = topic(&log, rng.below(3));
                    log.delete_topic(topic.name(), topic.id()).unwrap();
                    let of =
                        |told: &Told| told.values().map(|(of, _)| of.clone()).collect::<Vec<_>>();
                    let left = of(&told(log.groups()));
                    assert!(
                        left.iter().flatten().all(|(of, ..)| of != topic.name()),
                        "{what}"
                    );
                }
                1 => {
                    // The disk stops in the midst of a change, or refuses it.
                    let (group, change) = (group(rng.below(3)), random_change(&log, &mut rng));
                    let is_over = rng.below(2) == 0;
                    match is_over {
                        true => disk.stop_after(rng.below(3) as u64),
                        false => disk.fail(Operation::Sync, "groups", 0, std::io::ErrorKind::Other),
                    }
                    let stored = store(&log, &group, change.clone());
                    drop(log);
                    disk.clear_stop();
                    disk.clear_faults();
                    disk = disk.power_loss(&mut rng);
                    log = open(&disk);
                    let after = told(log.groups());
                    if after != before || stored.is_ok() {
                        // All of the change is there then: made once more it changes nothing but its time, which stands still.
                        store(&log, &group, change).unwrap();
                        assert_eq!(told(log.groups()), after, "{what}");
                    }
                }
                2 => {
                    drop(log);
                    disk = match rng.below(2) {
                        0 => disk.process_loss(),
                        _ => disk.power_loss(&mut rng),
                    };
                    log = open(&disk);
                    assert_eq!(told(log.groups()), before, "{what}");
                }
                _ => {
                    let (group, change) = (group(rng.below(3)), random_change(&log, &mut rng));
                    store(&log, &group, change.clone()).unwrap();
                    assert!(
                        took_place(log.groups(), &group, &change),
                        "{what}: {change:?}"
                    );
                }
            }
        }
    }
}

/// Shortened or not, the journal tells the same.
#[test]
fn a_journal_without_its_history_tells_the_same() {
    let disk = SimDisk::new();
    let log = open(&disk);
    let topic = topic(&log, 0);
    for number in 0..3 {
        store(&log, &group(number), Change::Members(Some(vec![1, 2, 3]))).unwrap();
    }
    store(&log, &group(1), Change::Members(None)).unwrap();
    for offset in 0..3000 {
        let metadata = ["", "x"][usize::try_from(offset % 2).unwrap()];
        let commits = (0..4)
            .map(|id| commit(&topic, id, offset, metadata))
            .collect();
        store(&log, &group(0), Change::Commit(commits)).unwrap();
    }
    let before = told(log.groups());
    let bytes = || {
        disk.open(&data_dir().join("groups"))
            .unwrap()
            .read_all()
            .unwrap()
            .len()
    };
    let long = bytes();
    drop(log);
    let log = open(&disk);
    assert!(bytes() < long / 100, "{} of {long}", bytes());
    assert_eq!(told(log.groups()), before);
    drop(log);
    assert_eq!(told(open(&disk).groups()), before, "and once more");
}

/// The running log shortens it, too. On a real disk: a simulated one is smaller.
#[test]
fn a_long_journal_is_made_shorter_while_the_log_runs() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let clock = Arc::new(ManualClock::new(1_000_000_000));
        let config = LogConfig {
            sync_threads: 0,
            wal_bytes: 64 << 10,
            ..LogConfig::new(folder.path().to_owned())
        };
        Log::open(config, Arc::new(RealDisk::new()), clock).unwrap()
    };
    let log = open();
    let topic = topic(&log, 0);
    let bytes = || {
        std::fs::metadata(folder.path().join("groups"))
            .unwrap()
            .len()
    };
    let text = "x".repeat(60_000);
    store(
        &log,
        &group(1),
        Change::Commit(vec![commit(&topic, 0, 1, "")]),
    )
    .unwrap();
    store(&log, &group(1), Change::Members(Some(vec![1]))).unwrap();
    store(&log, &group(1), Change::Members(None)).unwrap();
    let mut longest = 0;
    for offset in 0..100 {
        let commit = commit(&topic, 0, offset, &text);
        store(&log, &group(0), Change::Commit(vec![commit])).unwrap();
        longest = longest.max(bytes());
    }
    assert!(
        longest > 4_000_000 && bytes() < longest / 2,
        "{longest}, {}",
        bytes()
    );
    let before = told(log.groups());
    log.close().unwrap();
    drop((log, topic));
    assert_eq!(told(open().groups()), before);
}

/// Journals as they were before there were texts, times and members.
#[test]
fn an_old_journal_reads() {
    let disk = SimDisk::new();
    drop(open(&disk));
    let mut journal = b"BSLTJRN1".to_vec();
    for payload in [
        &br#"{"commits":[["g0","t0",1,5],["g0","t1",0,6],["g1","t0",0,7]]}"#[..],
        br#"{"topic_deleted":"t1"}"#,
    ] {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut digest = crate::block::new_digest();
        digest.update(&length);
        digest.update(payload);
        journal.extend_from_slice(&length);
        journal.extend_from_slice(&crate::block::digest_value(&digest).to_be_bytes());
        journal.extend_from_slice(payload);
    }
    disk.change(&data_dir().join("groups"), |bytes| *bytes = journal);
    let log = open(&disk);
    let list = log.groups().list();
    let list: Vec<_> = list
        .iter()
        .map(|(group, topic, id, offset)| (group.as_str(), topic.as_str(), id.0, offset.0))
        .collect();
    assert_eq!(list, [("g0", "t0", 1, 5), ("g1", "t0", 0, 7)]);
    // Nobody knows when that was: not too long ago.
    drop(log);
    let clock = Arc::new(ManualClock::new(10_000_000_000));
    let log = Log::open(config(), Arc::new(disk), clock).unwrap();
    let second = Duration::from_secs(1);
    assert!(log.groups().idle_for(second).is_empty());
}

/// A group is idle from its last commit on, or from when its last member went.
#[test]
fn groups_that_nobody_uses_expire() {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let log = Log::open(config(), Arc::new(SimDisk::new()), clock.clone()).unwrap();
    let topic = topic(&log, 0);
    let expired = |seconds| {
        let idle = log.groups().idle_for(Duration::from_secs(seconds));
        let expire = |(name, change)| {
            store(&log, &name, change).unwrap();
            name
        };
        idle.into_iter().map(expire).collect::<Vec<_>>()
    };
    let commit = |number| {
        let commit = commit(&topic, 0, 1, "");
        store(&log, &group(number), Change::Commit(vec![commit])).unwrap();
    };
    commit(0);
    commit(1);
    store(&log, &group(1), Change::Members(Some(vec![1]))).unwrap();
    assert_eq!(expired(1), []);
    clock.advance_ns(1_000_000_000);
    store(&log, &group(1), Change::Members(None)).unwrap();
    assert_eq!(
        expired(1),
        [group(0)],
        "the other's last member has just gone"
    );
    assert_eq!(log.groups().names(), [group(1)]);
    clock.advance_ns(1_000_000_000);
    // Used between the look at it and its turn.
    commit(1);
    let before_ms = 2_000;
    store(&log, &group(1), Change::Expire { before_ms }).unwrap();
    assert_eq!(log.groups().names(), [group(1)]);
    clock.advance_ns(1_000_000_000);
    assert_eq!(expired(1), [group(1)]);
    assert_eq!(log.groups().names(), []);
}

/// What a transaction commits for groups is there with its end, or neither is.
#[test]
fn a_transaction_and_its_offsets_are_stored_together() {
    for seed in 0..40 {
        let mut rng = SimRng::new(seed);
        let disk = SimDisk::new();
        let log = open(&disk);
        let topic = topic(&log, 0);
        disk.stop_after(seed % 5);
        let ended = TransactionChange {
            id: "a \"transaction\"".to_owned(),
            state: Some(vec![0, 255, 7]),
        };
        let commit = Change::Commit(vec![commit(&topic, 0, 9, "")]);
        drop(
            log.groups()
                .begin_transaction(ended, vec![(group(0), commit)]),
        );
        drop((log, topic));
        disk.clear_stop();
        let log = open(&disk.power_loss(&mut rng));
        let states: Vec<_> = log.groups().transactions();
        let states: Vec<_> = states
            .iter()
            .map(|(id, state, _)| (id.as_str(), &state[..]))
            .collect();
        match log.groups().contains(&group(0)) {
            true => assert_eq!(
                states,
                [("a \"transaction\"", &[0, 255, 7][..])],
                "seed {seed}"
            ),
            false => assert!(states.is_empty(), "seed {seed}"),
        }
        let forgotten = TransactionChange {
            id: "a \"transaction\"".to_owned(),
            state: None,
        };
        drop(log.groups().begin_transaction(forgotten, Vec::new()));
        assert!(log.groups().transactions().is_empty());
    }
}
