//! Stamps of a coarser unit compared with finer moments: as the moments are, in every tier.

use basalt_proto::Frame;

use super::{Fixture, TIERS};

const EVENTS: &str = r#"{"format":"json","columns":[
    {"name":"s","type":"timestamp(s)","path":"at"},
    {"name":"ms","type":"timestamp(ms)","path":"text"},
    {"name":"us","type":"timestamp(us)","path":"text"},
    {"name":"n","type":"int64"}
]}"#;

/// 2024-05-06T07:08:09Z.
const SECOND: i64 = 1_714_979_289;

fn payload(n: u32, at: &str, second: i64) -> Vec<u8> {
    format!(r#"{{"n":{n},"at":{second},"text":"{at}"}}"#).into_bytes()
}

async fn events() -> Vec<Fixture> {
    let payloads = [
        payload(0, "2024-05-06T07:08:08Z", SECOND - 1),
        payload(1, "2024-05-06T07:08:09Z", SECOND),
        payload(2, "2024-05-06T07:08:10Z", SECOND + 1),
        payload(3, "1960-01-01T00:00:00Z", -315_619_200),
        br#"{"n":4}"#.to_vec(),
    ];
    let mut fixtures = Vec::new();
    for tier in TIERS {
        let fixture = Fixture::new().await;
        fixture.create("t", 1, 1 << 20).await;
        fixture.set_schema("t", EVENTS);
        let frames: Vec<_> = payloads
            .iter()
            .map(|payload| Frame::record(1_714_979_289_000_500_000, b"", payload))
            .collect();
        fixture.place("t", tier, &frames).await;
        fixtures.push(fixture);
    }
    fixtures
}

#[tokio::test]
async fn a_moment_between_two_stamps_is_neither() {
    const BETWEEN: &str = "TIMESTAMP '2024-05-06T07:08:09.0005Z'";
    for fixture in events().await {
        let ask = async |condition: &str| {
            let sql = format!("SELECT n FROM t WHERE {condition} ORDER BY n");
            fixture.rows(&sql).await.join(" ")
        };
        for column in ["s", "ms"] {
            for (condition, expected) in [
                ("= {}", ""),
                ("<> {}", "0 1 2 3"),
                ("< {}", "0 1 3"),
                ("<= {}", "0 1 3"),
                ("> {}", "2"),
                (">= {}", "2"),
                ("IN ({})", ""),
                ("NOT IN ({})", "0 1 2 3"),
                ("IN ({}, TIMESTAMP '2024-05-06T07:08:10Z')", "2"),
                ("BETWEEN {} AND TIMESTAMP '2025-01-01T00:00:00Z'", "2"),
                ("BETWEEN TIMESTAMP '2024-05-06T07:08:09Z' AND {}", "1"),
                (
                    "NOT BETWEEN {} AND TIMESTAMP '2025-01-01T00:00:00Z'",
                    "0 1 3",
                ),
                ("IS DISTINCT FROM {}", "0 1 2 3 4"),
                ("IS NOT DISTINCT FROM {}", ""),
            ] {
                let condition = format!("{column} {}", condition.replace("{}", BETWEEN));
                assert_eq!(ask(&condition).await, expected, "{condition}");
            }
            assert_eq!(ask(&format!("{BETWEEN} > {column}")).await, "0 1 3");
            assert_eq!(ask(&format!("NOT ({column} = {BETWEEN})")).await, "0 1 2 3");
        }
        // What the unit can say is compared as ever, and text is a moment, too.
        for column in ["s", "ms", "us"] {
            let ask = async |condition: &str| ask(&format!("{column} {condition}")).await;
            assert_eq!(ask("= TIMESTAMP '2024-05-06T07:08:09Z'").await, "1");
            assert_eq!(ask("= '2024-05-06T07:08:09Z'").await, "1");
            assert_eq!(ask("> '2024-05-06T07:08:08.9999999Z'").await, "1 2");
            assert_eq!(ask("< '1960-01-01T00:00:00.5Z'").await, "3");
            assert_eq!(ask("< '1959-12-31T23:59:59.5Z'").await, "");
            assert_eq!(ask("> DATE '2024-05-06'").await, "0 1 2");
            assert_eq!(ask("< TIMESTAMP '9999-12-31T23:59:59Z'").await, "0 1 2 3");
        }
    }
}

#[tokio::test]
async fn a_moment_that_nanoseconds_cannot_say_fails_no_query() {
    let far = payload(9, "9999-12-31T00:00:00Z", 253_402_214_400);
    for (fixture, tier) in events().await.into_iter().zip(TIERS) {
        fixture.append("t", 0, &[Frame::record(1, b"", &far)]).await;
        if tier == super::Tier::Cold {
            fixture.cool("t").await;
        }
        let ask = async |condition: &str| {
            let sql = format!("SELECT n FROM t WHERE {condition} ORDER BY n");
            fixture.rows(&sql).await.join(" ")
        };
        // The record's own stamp is half a millisecond behind the second.
        assert_eq!(ask("ms < _timestamp").await, "0 1 3", "{tier:?}");
        assert_eq!(ask("_timestamp >= us").await, "0 1 3", "{tier:?}");
        assert_eq!(ask("s = ms").await, "0 1 2 3 9", "{tier:?}");
        assert_eq!(
            ask("ms > '2024-05-06T07:08:09.5Z'").await,
            "2 9",
            "{tier:?}"
        );
        assert_eq!(
            ask("_timestamp < '9999-12-31'").await,
            "0 1 2 3 4 9",
            "{tier:?}"
        );
    }
}
