//! P1, the exact boundary: whatever seals, cools and expires, a query sees each record once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use basalt_log::TopicConfig;
use basalt_proto::{Frame, PartitionId};

use super::{Fixture, name};

/// xorshift64*: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}

fn numbers(batches: &[RecordBatch]) -> [Option<i64>; 4] {
    let batch = batches.iter().find(|batch| batch.num_rows() == 1).unwrap();
    std::array::from_fn(|column| {
        let column = batch.column(column).as_primitive::<Int64Type>();
        (column.null_count() == 0).then(|| column.value(0))
    })
}

/// An appender and a loop that seals, cools and (if `expiring`) expires run while queries count.
#[expect(
    clippy::too_many_lines,
    reason = "one story: appending, cooling, expiring and asking at once"
)]
async fn run(seed: u64, expiring: bool) {
    println!("seed {seed}, expiring {expiring}");
    let fixture = Arc::new(Fixture::new().await);
    let config = TopicConfig {
        segment_bytes: Some(4 << 10),
        hot_bytes: Some(8 << 10),
        hot_age: Some(Duration::from_secs(3_600)),
        retention_bytes: expiring.then_some(40 << 10),
        ..TopicConfig::default()
    };
    fixture.tiered.create_topic(&name("t"), 1, config).unwrap();
    let acknowledged = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));

    let appender = tokio::spawn({
        let (fixture, acknowledged, stop) = (
            Arc::clone(&fixture),
            Arc::clone(&acknowledged),
            Arc::clone(&stop),
        );
        async move {
            let mut random = Random(seed);
            let payload = [b'x'; 300];
            let partition = fixture
                .tiered
                .partition(&name("t"), PartitionId(0))
                .unwrap();
            while !stop.load(Ordering::Relaxed) {
                // Not faster than cooling: a backlog would leave nothing but cooling to test.
                if partition.bounds().hot_bytes > (64 << 10) {
                    fixture.cool("t").await;
                    continue;
                }
                let count = 1 + random.below(20);
                let frames: Vec<_> = (0..count)
                    .map(|_| {
                        Frame::record(
                            random.0,
                            b"",
                            &payload[..usize::try_from(random.below(300)).unwrap()],
                        )
                    })
                    .collect();
                let base = fixture.append("t", 0, &frames).await;
                acknowledged.store(base.0 + count, Ordering::SeqCst);
            }
        }
    });
    let keeper = tokio::spawn({
        let (fixture, stop) = (Arc::clone(&fixture), Arc::clone(&stop));
        async move {
            let mut random = Random(seed ^ 0xdead_beef);
            while !stop.load(Ordering::Relaxed) {
                if random.below(3) == 0 {
                    fixture.cool("t").await;
                }
                let report = fixture.tiered.maintain().await;
                assert!(report.errors.is_empty(), "seed {seed}: {:?}", report.errors);
                tokio::task::yield_now().await;
            }
        }
    });

    let (mut last_max, mut last_min) = (-1, 0);
    let mut round = 0;
    // At least so often, and until something expired.
    while round < 40 || (expiring && last_min == 0 && round < 10_000) {
        round += 1;
        let before = i64::try_from(acknowledged.load(Ordering::SeqCst)).unwrap();
        let sql = match round % 2 {
            0 => "SELECT count(*), count(DISTINCT _offset), min(_offset), max(_offset) FROM t",
            // A self-join reads the same snapshot twice.
            _ => {
                "SELECT count(*), count(DISTINCT a._offset), min(b._offset), max(a._offset) FROM t a JOIN t b ON a._offset = b._offset"
            }
        };
        let [count, distinct, min, max] = numbers(&fixture.batches(sql).await.unwrap());
        let context = format!(
            "seed {seed}, round {round}: {count:?} {distinct:?} {min:?} {max:?}, {before} acknowledged before"
        );
        let (Some(count), Some(distinct)) = (count, distinct) else {
            panic!("{context}")
        };
        assert_eq!(count, distinct, "a record twice: {context}");
        let (Some(min), Some(max)) = (min, max) else {
            assert!(
                count == 0 && (before == 0 || expiring),
                "nothing is left: {context}"
            );
            continue;
        };
        assert_eq!(count, max - min + 1, "a record is missing: {context}");
        assert!(
            max + 1 >= before,
            "an acknowledged record is missing: {context}"
        );
        assert!(max >= last_max, "the end fell from {last_max}: {context}");
        assert!(
            min >= last_min && (expiring || min == 0),
            "the start is wrong, it was {last_min}: {context}"
        );
        (last_max, last_min) = (max, min);
    }
    stop.store(true, Ordering::Relaxed);
    appender.await.unwrap();
    keeper.await.unwrap();
    if expiring {
        assert!(
            last_min > 0,
            "seed {seed}: nothing expired, the test shows nothing"
        );
    }
    let cold = fixture
        .rows("SELECT count(*) > 0 FROM sys.segments WHERE tier = 'cold'")
        .await;
    assert_eq!(
        cold,
        ["true"],
        "seed {seed}: nothing cooled, the test shows nothing"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_no_record_is_doubled_or_lost_while_segments_seal_and_cool() {
    for seed in [1, 2, 3] {
        run(seed, false).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_no_record_is_doubled_or_lost_while_segments_also_expire() {
    for seed in [4, 5, 6] {
        run(seed, true).await;
    }
}
