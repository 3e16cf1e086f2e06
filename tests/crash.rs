//! `kill -9` at random moments under load, with segments sealing and cooling all the while: every acknowledged record is
//! there afterwards, byte for byte, at its offset, and every start works.

use std::collections::BTreeMap;

use crate::support::hermitmq::{Consumer, Frame, Producer, commit};
use crate::support::{ServerProcess, SimRng};

const TOPIC: &str = "crash";
/// Small segments and no hot window, so that kills hit sealing, cooling, manifests and the removal of segments.
const SETTINGS: &[&str] = &[
    "log.segment_bytes=65536",
    "cold.hot_bytes=0",
    "cold.maintenance_interval_ms=1000",
];

fn rounds() -> u32 {
    std::env::var("BASALT_CRASH_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(200)
}

fn frame(rng: &mut SimRng, number: u64) -> Frame {
    let mut payload = number.to_be_bytes().to_vec();
    payload.resize(
        8 + rng.below(400),
        u8::try_from(number % 251).expect("small"),
    );
    Frame::new(
        number,
        if number.is_multiple_of(2) { b"k" } else { b"" },
        &payload,
    )
}

/// Produces with many frames in flight until `kill_after` are acknowledged, then kills; all acknowledgements that came.
fn produce_and_kill(
    server: ServerProcess,
    rng: &mut SimRng,
    number: &mut u64,
    kill_after: usize,
) -> BTreeMap<u64, Frame> {
    let mut producer = Producer::open(&server.address, TOPIC, 0).expect("open");
    let mut in_flight = std::collections::VecDeque::new();
    let mut acked = BTreeMap::new();
    let mut server = Some(server);
    loop {
        if server.is_some() {
            let frames: Vec<Frame> = (0..1 + rng.below(40))
                .map(|_| {
                    *number += 1;
                    frame(rng, *number)
                })
                .collect();
            if producer.send(&frames).is_err() {
                break;
            }
            in_flight.extend(frames);
        }
        let wait_for = if in_flight.len() > 400 {
            in_flight.len() - 200
        } else {
            1 + rng.below(10)
        };
        for _ in 0..wait_for.min(in_flight.len()) {
            match producer.ack() {
                Ok(Ok(offset)) => {
                    let frame = in_flight
                        .pop_front()
                        .expect("a frame for each acknowledgement");
                    assert!(
                        acked.insert(offset, Frame { offset, ..frame }).is_none(),
                        "offset {offset} twice"
                    );
                }
                Ok(Err(refusal)) => panic!("refused: {refusal:?}"),
                // The kill. What was acknowledged before it has been read.
                Err(_) => return acked,
            }
        }
        if acked.len() >= kill_after
            && let Some(server) = server.take()
        {
            server.kill();
        }
        if server.is_none() && in_flight.is_empty() {
            break;
        }
    }
    acked
}

fn verify(server: &ServerProcess, acked: &BTreeMap<u64, Frame>) {
    let (Some((first, _)), Some((last, _))) = (acked.first_key_value(), acked.last_key_value())
    else {
        return;
    };
    assert!(commit(&server.address, "verify", TOPIC, 0, *first).expect("commit"));
    let mut consumer = Consumer::open(&server.address, "verify", TOPIC, 0).expect("open");
    let mut expected = acked.iter();
    let mut next_offset = *first;
    while next_offset <= *last {
        let frame = consumer.next().expect("frame");
        assert!(
            frame.offset >= next_offset,
            "offset {} comes after {next_offset}",
            frame.offset
        );
        next_offset = frame.offset + 1;
        if acked.contains_key(&frame.offset) {
            let (offset, wanted) = expected.next().expect("in order");
            assert_eq!(
                (&frame.offset, &frame),
                (offset, wanted),
                "an acknowledged record is missing or changed"
            );
        }
    }
    assert!(
        expected.next().is_none(),
        "acknowledged records are missing"
    );
}

#[test]
fn every_acknowledged_record_survives_kills_at_random_moments() {
    let seed = std::env::var("BASALT_CRASH_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(20_260_101);
    println!(
        "seed {seed} (BASALT_CRASH_SEED), {} rounds (BASALT_CRASH_ROUNDS)",
        rounds()
    );
    let mut rng = SimRng::new(seed);
    let data = tempfile::tempdir().expect("folder");
    let mut number = 0;
    let mut all: BTreeMap<u64, Frame> = BTreeMap::new();
    let mut last_round = BTreeMap::new();
    for round in 0..rounds() {
        let server = ServerProcess::start(data.path(), SETTINGS);
        verify(&server, &last_round);
        let kill_after = 1 + rng.below(1500);
        last_round = produce_and_kill(server, &mut rng, &mut number, kill_after);
        assert!(!last_round.is_empty(), "round {round} acknowledged nothing");
        for (offset, frame) in &last_round {
            assert!(
                all.insert(*offset, frame.clone()).is_none(),
                "round {round}: offset {offset} was given before"
            );
        }
    }
    let server = ServerProcess::start(data.path(), SETTINGS);
    verify(&server, &all);
    let (count, distinct) = (
        server.sql_value("SELECT count(*) FROM crash"),
        server.sql_value("SELECT count(DISTINCT _offset) FROM crash"),
    );
    assert_eq!(count, distinct, "a record is counted twice");
    assert!(count.parse::<usize>().expect("number") >= all.len());
    assert!(
        server.metric("basalt_cold_end_offset") > 0,
        "nothing was cooled meanwhile"
    );
    server.stop();
    let check = crate::support::binary()
        .arg("check")
        .arg(data.path())
        .output()
        .expect("check");
    assert!(
        check.status.success(),
        "{}{}",
        String::from_utf8_lossy(&check.stdout),
        String::from_utf8_lossy(&check.stderr)
    );
    println!("{} records acknowledged over {} kills", all.len(), rounds());
}
