//! The whole path by the command line: the same bytes and the same answers hot, after a restart, cold, after another,
//! and with half cold and half hot.

use sha2::{Digest as _, Sha256};

use crate::support::{ServerProcess, binary, flights};

/// What a set of flights must answer, computed here by hand from its lines.
#[derive(Debug, PartialEq)]
struct Answers {
    count: usize,
    carriers: Vec<(String, usize, String)>,
}

fn expected(lines: &[u8]) -> Answers {
    let text = std::str::from_utf8(lines).expect("text");
    let mut answers = Answers {
        count: text.lines().count(),
        carriers: Vec::new(),
    };
    for carrier in ["UA", "B6", "EV"] {
        let (mut flights, mut sum, mut known) = (0, 0_i64, 0_i64);
        for line in text.lines() {
            let flight: serde_json::Value = serde_json::from_str(line).expect("JSON");
            if flight["carrier"] == carrier {
                flights += 1;
                if let Some(delay) = flight["dep_delay"].as_i64() {
                    sum += delay;
                    known += 1;
                }
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let average = sum as f64 / known as f64;
        answers
            .carriers
            .push((carrier.to_owned(), flights, format!("{average:.4}")));
    }
    if answers.count == 336_776 {
        // The published figures of the whole year.
        let figures = [
            ("UA", 58_665, "12.1061"),
            ("B6", 54_635, "13.0225"),
            ("EV", 54_173, "19.9554"),
        ];
        for ((carrier, flights, average), published) in answers.carriers.iter().zip(figures) {
            assert_eq!((carrier.as_str(), *flights, average.as_str()), published);
        }
    }
    answers
}

fn ask(server: &ServerProcess) -> Answers {
    let count = server
        .sql_value("SELECT count(*) FROM flights")
        .parse()
        .expect("number");
    let carriers = ["UA", "B6", "EV"].map(|carrier| {
        let where_carrier = format!("FROM flights WHERE _payload->>'carrier' = '{carrier}'");
        let flights = server
            .sql_value(&format!("SELECT count(*) {where_carrier}"))
            .parse()
            .expect("number");
        let average: f64 = server
            .sql_value(&format!(
                "SELECT avg(json_get_int(_payload, 'dep_delay')) {where_carrier}"
            ))
            .parse()
            .expect("number");
        (carrier.to_owned(), flights, format!("{average:.4}"))
    });
    Answers {
        count,
        carriers: carriers.into(),
    }
}

fn check(server: &ServerProcess, lines: &[u8], answers: &Answers, when: &str) {
    let output = server.try_basalt(
        &["consume", "flights", "--from", "earliest", "--to", "end"],
        b"",
    );
    assert!(
        output.status.success(),
        "{when}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(output.stdout.len(), lines.len(), "{when}");
    assert_eq!(
        Sha256::digest(&output.stdout),
        Sha256::digest(lines),
        "{when}: other bytes"
    );
    assert_eq!(&ask(server), answers, "{when}");
}

#[test]
fn the_same_bytes_and_answers_hot_cold_and_in_between() {
    let lines = flights();
    let answers = expected(&lines);
    let data = tempfile::tempdir().expect("folder");
    let settings = ["log.segment_bytes=16777216"];
    let server = ServerProcess::start(data.path(), &settings);
    let half = lines.len() / 2
        + lines[lines.len() / 2..]
            .iter()
            .position(|byte| *byte == b'\n')
            .expect("line")
        + 1;

    let produced = server.try_basalt(&["produce", "flights"], &lines[..half]);
    assert!(
        produced.status.success(),
        "{}",
        String::from_utf8_lossy(&produced.stderr)
    );
    server.basalt(&["topic", "cool", "flights", "--wait"]);
    let produced = server.try_basalt(&["produce", "flights"], &lines[half..]);
    assert!(
        produced.status.success(),
        "{}",
        String::from_utf8_lossy(&produced.stderr)
    );
    check(&server, &lines, &answers, "half cold, half hot");
    server.stop();

    let server = ServerProcess::start(data.path(), &settings);
    check(&server, &lines, &answers, "half and half after a restart");
    server.basalt(&["topic", "cool", "flights", "--wait"]);
    check(&server, &lines, &answers, "cold");
    let hot = server.sql_value("SELECT sum(hot_bytes) FROM sys.partitions WHERE topic = 'flights'");
    assert_eq!(hot, "0", "entirely cold");
    server.stop();

    let server = ServerProcess::start(data.path(), &settings);
    check(&server, &lines, &answers, "cold after a restart");
    server.stop();
    let output = binary()
        .arg("check")
        .arg(data.path())
        .output()
        .expect("check");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn the_same_bytes_and_answers_hot() {
    let lines = flights();
    let answers = expected(&lines);
    let data = tempfile::tempdir().expect("folder");
    let server = ServerProcess::start(data.path(), &[]);
    let produced = server.try_basalt(&["produce", "flights"], &lines);
    assert!(
        produced.status.success(),
        "{}",
        String::from_utf8_lossy(&produced.stderr)
    );
    check(&server, &lines, &answers, "hot");
    server.stop();
    let server = ServerProcess::start(data.path(), &[]);
    check(&server, &lines, &answers, "hot after a restart");
    server.stop();
}

#[test]
fn a_bounded_replay_gives_exactly_its_records() {
    let data = tempfile::tempdir().expect("folder");
    let server = ServerProcess::start(data.path(), &[]);
    let produced = server.try_basalt(&["produce", "t"], b"a\nb\n\nd\r\ne");
    assert!(produced.status.success());
    assert_eq!(
        server.basalt(&["consume", "t", "--from", "1", "--to", "4"]),
        "b\n\nd\r\n"
    );
    assert_eq!(
        server.basalt(&["consume", "t", "--from", "earliest", "--to", "end"]),
        "a\nb\n\nd\r\ne\n"
    );
    server.stop();
}

#[test]
fn mistakes_are_named_with_the_next_step_and_an_exit_code() {
    let data = tempfile::tempdir().expect("folder");
    let server = ServerProcess::start(data.path(), &[]);
    for (args, code, word) in [
        (vec!["produce", "a/b"], 2, "a/b"),
        (
            vec!["consume", "nothing-here", "--to", "end", "--from", "soon"],
            2,
            "soon",
        ),
        (vec!["topic", "describe", "nothing-here"], 1, "nothing-here"),
        (vec!["sql", "SELECT broken"], 1, "broken"),
        (vec!["sql", "SELECT * FROM nothing_here"], 1, "nothing_here"),
        (vec!["sql", "DROP TABLE flights"], 1, "flights"),
        (vec!["sql", "DELETE FROM flights"], 1, "flights"),
    ] {
        let output = server.try_basalt(&args, b"x\n");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(
            said.to_lowercase().contains(&word.to_lowercase()),
            "{args:?}: {said}"
        );
    }
    for flag in [
        ["--set", "log.segment_bytes=abc"],
        ["--set", "foo.bar=1"],
        ["--listen", "foo"],
    ] {
        let output = binary().arg("serve").args(flag).output().expect("serve");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flag:?}: {said}");
        let named = flag[1].split('=').next().expect("name");
        assert!(said.contains(named), "{flag:?}: {said}");
    }
    let second = binary()
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(data.path())
        .output()
        .expect("serve");
    assert_eq!(second.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&second.stderr).contains("in use"),
        "{}",
        String::from_utf8_lossy(&second.stderr)
    );
    let checked = binary()
        .arg("check")
        .arg(data.path())
        .output()
        .expect("check");
    assert_eq!(
        checked.status.code(),
        Some(1),
        "a folder in use is not checked"
    );
    server.stop();
}
