//! Whole runs against a server in memory, which does its work or does it wrong.

mod fake;

use std::sync::atomic::AtomicBool;

use crate::args::tests::plan;
use crate::error::LoadError;
use crate::progress::{Progress, Standing};
use crate::report::Report;
use fake::{FakeServer, Fault, STALL};

struct Silence;

impl Progress for Silence {
    fn update(&mut self, _: &Standing) {}
    fn say(&mut self, _: &str) {}
    fn clear(&mut self) {}
}

/// A run against a server that may be slow, as on a busy machine, but never gives up.
fn load(server: &FakeServer, arguments: &str) -> Result<Report, LoadError> {
    let plan = plan(&format!("{arguments} --server {}", server.address)).unwrap();
    crate::run(plan.mode, &plan.args, &mut Silence, &AtomicBool::new(false))
}

const SHAPES: [&str; 5] = [
    "",
    "--connections 3 --batch 7 --pipeline 2",
    "--connections 2 --partitions 5 --key 8 --payload uniform:0-300 --batch 1",
    "--connections 4 --partitions 2 --batch 9 --payload 0",
    "--payload 100000 --records 40 --fetch-bytes 1",
];

#[test]
fn a_good_server_passes_every_mode_and_shape() {
    for mode in [
        "produce",
        "consume",
        "both",
        "e2e",
        "e2e --rate 5000",
        "produce --rate 20000 --verify headers",
        "produce --ack none",
        "both --verify count",
    ] {
        for shape in SHAPES {
            let server = FakeServer::start(Fault::None);
            let records = if shape.contains("--records") {
                ""
            } else {
                "--records 1000"
            };
            let report = load(&server, &format!("{mode} {shape} {records}")).unwrap();
            let line = &report.line;
            assert!(
                report.is_complete(),
                "{mode} {shape}: {}",
                report.to_json().unwrap()
            );
            // Connections that share a partition each read all of it.
            let sent = if shape.contains("--records") {
                40
            } else {
                1000
            };
            let times = if mode == "consume" && shape.contains("--connections 4") {
                2
            } else {
                1
            };
            assert_eq!(line.expected, sent * times, "{mode} {shape}");
            assert_eq!(
                (server.topics(), server.deleted()),
                (0, 1),
                "the topic is deleted"
            );
            let waits = !mode.contains("none") && mode != "consume";
            assert_eq!(line.p50_us.is_some(), waits, "{mode} {shape}");
            assert_eq!(
                line.arrival_latency.is_some(),
                mode.starts_with("e2e") || mode == "both",
                "{mode} {shape}"
            );
            if let Some(latency) = line.ack_latency.filter(|_| waits) {
                assert_eq!(latency.count, sent);
            }
        }
    }
}

#[test]
fn hermitmq_passes_as_well() {
    for (mode, expected) in [
        ("produce", 300),
        ("consume", 300),
        ("both", 300),
        ("e2e --rate 3000", 300),
        ("produce --connections 2 --partitions 2 --verify count", 300),
    ] {
        let server = FakeServer::start(Fault::None);
        let report = load(
            &server,
            &format!("{mode} --protocol hermitmq --records 300 --batch 20 --payload 50"),
        )
        .unwrap();
        assert!(
            report.is_complete(),
            "{mode}: {}",
            report.to_json().unwrap()
        );
        assert_eq!(report.line.expected, expected, "{mode}");
    }
}

#[test]
fn a_topic_that_was_there_is_used_behind_its_end_and_kept() {
    for protocol in ["session", "hermitmq"] {
        let server = FakeServer::start(Fault::None);
        for _ in 0..2 {
            let report = load(
                &server,
                &format!("both --topic t --records 200 --protocol {protocol}"),
            )
            .unwrap();
            assert!(
                report.is_complete(),
                "{protocol}: {}",
                report.to_json().unwrap()
            );
        }
        assert_eq!((server.topics(), server.deleted()), (1, 0));
    }
}

#[test]
fn a_kept_topic_can_be_read_by_a_later_run() {
    let server = FakeServer::start(Fault::None);
    load(&server, "produce --topic t --records 500 --payload 20").unwrap();
    let report = load(&server, "consume --topic t --payload 20 --verify full").unwrap();
    assert!(report.is_complete());
    assert_eq!((report.line.expected, report.line.verified), (500, 500));
    let other = load(&server, "consume --topic t --payload 21 --verify full").unwrap();
    assert_eq!(
        other.line.verified, 0,
        "these are not the records of that load"
    );
    assert!(
        load(&server, "consume --topic t --payload 21")
            .unwrap()
            .is_complete(),
        "but their headers are sound"
    );
    assert!(matches!(
        load(&server, "consume --topic nothing"),
        Err(LoadError::NothingToRead)
    ));
    assert!(matches!(
        load(&server, "produce --topic t --partitions 2"),
        Err(LoadError::Partitions {
            found: 1,
            expected: 2
        })
    ));
}

#[test]
fn a_server_that_does_wrong_never_passes() {
    let faults = [
        Fault::Lose,
        Fault::LoseAndReuse,
        Fault::Double,
        Fault::Change,
        Fault::Swap,
        Fault::Refuse,
        Fault::Withhold,
        Fault::Misplace,
    ];
    for fault in faults {
        for mode in ["produce", "consume", "both", "e2e"] {
            for protocol in ["session", "hermitmq"] {
                let server = FakeServer::start(fault);
                match load(
                    &server,
                    &format!("{mode} --records 200 --batch 10 --timeout 1 --protocol {protocol}"),
                ) {
                    Ok(report) => {
                        let line = &report.line;
                        assert!(
                            !report.is_complete(),
                            "{fault:?} {mode} {protocol}: {}",
                            report.to_json().unwrap()
                        );
                        let found = line.missing
                            + line.doubled
                            + line.changed
                            + line.reordered
                            + line.misplaced;
                        let short = line.expected - line.verified.min(line.expected);
                        assert!(found + short + line.server_errors.len() as u64 > 0);
                    }
                    Err(error) => panic!("{fault:?} {mode} {protocol}: {error}"),
                }
            }
        }
    }
}

#[test]
fn a_fault_is_called_by_its_name() {
    let of = |fault| {
        load(
            &FakeServer::start(fault),
            "both --records 200 --batch 10 --timeout 1",
        )
        .unwrap()
        .line
    };
    assert_eq!(of(Fault::Lose).missing, 1);
    assert_eq!(of(Fault::LoseAndReuse).reordered, 1);
    assert_eq!(of(Fault::Double).reordered, 1);
    assert_eq!(of(Fault::Change).changed, 1);
    assert!(of(Fault::Swap).reordered >= 2);
    let refused = of(Fault::Refuse);
    assert_eq!(refused.server_errors.get("busy"), Some(&10));
    assert_eq!(refused.acknowledged, Some(190));
}

#[test]
fn time_bounds_a_run_and_the_warm_up_is_left_out() {
    let server = FakeServer::start(Fault::None);
    for mode in [
        "produce --rate 1000",
        "both --rate 1000",
        "both --rate 1000 --connections 3 --partitions 2",
        "consume --records 100",
    ] {
        let report = load(&server, &format!("{mode} --duration 0.4 --warmup 0.2")).unwrap();
        assert!(
            report.is_complete(),
            "{mode}: {}",
            report.to_json().unwrap()
        );
        assert!(
            (report.line.seconds - 0.4).abs() < 0.25,
            "{mode}: {}",
            report.line.seconds
        );
        if mode.contains("rate") {
            assert_eq!(report.line.expected, 600, "all that was due in 0.6 s");
            assert_eq!(
                report.line.ack_latency.unwrap().count,
                400,
                "without the warm-up"
            );
            assert!(
                (report.line.records_per_s - 1000.0).abs() < 500.0,
                "{}",
                report.line.records_per_s
            );
        } else {
            assert!(report.line.expected > 100, "read again and again");
        }
    }
    assert!(matches!(
        load(&server, "produce --records 10 --warmup 5"),
        Err(LoadError::WithinWarmup)
    ));
}

/// LOAD-1: a server that stalls is charged for every record that was due meanwhile, not for the one it had.
#[test]
fn an_open_loop_does_not_omit_the_records_that_had_to_wait() {
    let half_us = STALL.as_secs_f64() * 1e6 / 2.0;
    for mode in ["produce", "e2e"] {
        let server = FakeServer::start(Fault::Stall);
        let arguments = "--records 600 --rate 2000 --pipeline 1 --verify headers";
        let report = load(&server, &format!("{mode} {arguments}")).unwrap();
        assert!(report.is_complete(), "a stall is no fault");
        let line = &report.line;
        assert!(
            line.max_us.unwrap() > half_us && line.p50_us.unwrap() > half_us / 3.0,
            "{}",
            report.to_json().unwrap()
        );
    }
    // The same stall in a closed loop is met by what was in flight, and by nothing else.
    let server = FakeServer::start(Fault::Stall);
    let report = load(&server, "produce --records 600 --batch 10 --pipeline 1").unwrap();
    let line = &report.line;
    assert!(line.max_us.unwrap() > half_us && line.p50_us.unwrap() < half_us / 3.0);
}

#[test]
fn the_line_has_the_names_that_others_rely_on() {
    let server = FakeServer::start(Fault::None);
    let report = load(&server, "e2e --records 100 --rate 5000 --repeat 3").unwrap();
    let json = report.to_json().unwrap();
    assert!(!json.contains('\n'));
    let line: serde_json::Value = serde_json::from_str(&json).unwrap();
    for name in [
        "records_per_s",
        "mb_per_s",
        "p50_us",
        "p90_us",
        "p99_us",
        "p999_us",
        "p9999_us",
        "max_us",
        "expected",
        "seen",
        "verified",
        "seconds",
        "payload",
        "connections",
        "rate",
    ] {
        assert!(line[name].is_number(), "{name} in {json}");
    }
    assert_eq!(
        (&line["bench"], &line["ack"], &line["verify"]),
        (&"e2e".into(), &"topic".into(), &"full".into())
    );
    assert_eq!(line["runs"].as_array().unwrap().len(), 3);
    assert_eq!(line["server_errors"], serde_json::json!({}));
}

#[test]
fn nobody_at_the_address_and_a_stopped_run_are_told_apart() {
    let plan = plan("produce --server 127.0.0.1:1").unwrap();
    let stop = AtomicBool::new(false);
    let error = crate::run(plan.mode, &plan.args, &mut Silence, &stop).unwrap_err();
    assert!(matches!(error, LoadError::Connect { .. }), "{error}");
    let server = FakeServer::start(Fault::None);
    let plan = self::plan(&format!("both --duration 60 --server {}", server.address)).unwrap();
    let stop = AtomicBool::new(true);
    let error = crate::run(plan.mode, &plan.args, &mut Silence, &stop).unwrap_err();
    assert!(matches!(error, LoadError::Stopped), "{error}");
    assert_eq!(server.deleted(), 1, "and clears up behind itself");
}
