//! The same answers hot, cold and half and half.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, TimeUnit};
use basalt_proto::batch::{BatchFields, BatchWriter, Compression, RecordToWrite};
use basalt_proto::{Frame, Offset, PartitionId, RecordHeader};

use super::{Fixture, TIERS, Tier, name, rows_of};

#[tokio::test]
async fn columns_are_exactly_those_of_a_topic() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 1 << 20).await;
    let schema = fixture
        .engine
        .query("SELECT * FROM t")
        .await
        .unwrap()
        .schema();
    let columns: Vec<_> = schema
        .fields()
        .iter()
        .map(|field| (field.name().as_str(), field.data_type()))
        .collect();
    assert_eq!(columns.len(), 7);
    assert_eq!(columns[0], ("_partition", &DataType::Int32));
    assert_eq!(columns[1], ("_offset", &DataType::Int64));
    let utc = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
    assert_eq!(columns[2], ("_timestamp", &utc));
    assert_eq!(columns[3], ("_key", &DataType::Binary));
    assert_eq!(columns[4].0, "_headers");
    assert!(matches!(columns[4].1, DataType::List(_)));
    assert_eq!(columns[5], ("_payload", &DataType::Binary));
    assert_eq!(columns[6], ("_record_count", &DataType::Int64));
    assert_eq!(fixture.rows("SELECT * FROM t").await, Vec::<String>::new());
    assert_eq!(fixture.rows("SELECT count(*) FROM t").await, ["0"]);
}

#[tokio::test]
async fn json_is_answered_alike_in_every_tier() {
    let payloads: Vec<Vec<u8>> = (0..400_i64)
        .map(|n| match n % 4 {
            0 => {
                format!(r#"{{"carrier":"UA","dep_delay":{n},"at":{{"gate":"B{n}"}}}}"#).into_bytes()
            }
            1 => format!(r#"{{"carrier":"B6","dep_delay":-{n}}}"#).into_bytes(),
            2 => b"not json".to_vec(),
            _ => vec![0xff, 0xfe, 0x00],
        })
        .collect();
    let frames: Vec<_> = payloads
        .iter()
        .map(|payload| Frame::record(7, b"k", payload))
        .collect();
    for tier in TIERS {
        let fixture = Fixture::new().await;
        fixture.create("flights", 1, 4 << 10).await;
        fixture.place("flights", tier, &frames).await;
        let hot = fixture
            .rows("SELECT tier, count(*) > 0 FROM sys.segments GROUP BY tier ORDER BY tier")
            .await;
        let expected: &[&str] = match tier {
            Tier::Hot => &["hot|true"],
            Tier::Cold => &["cold|true"],
            Tier::Half => &["cold|true", "hot|true"],
        };
        assert_eq!(hot, expected, "{tier:?}");
        let ask = async |sql: &str| fixture.rows(sql).await;
        assert_eq!(
            ask("SELECT count(*) FROM flights").await,
            ["400"],
            "{tier:?}"
        );
        assert_eq!(
            ask("SELECT _payload->>'carrier' c, count(*), avg(json_get_int(_payload, 'dep_delay')) FROM flights GROUP BY c ORDER BY c").await,
            ["B6|100|-199.0", "UA|100|198.0", "|200|"],
            "{tier:?}"
        );
        assert_eq!(
            ask("SELECT json_get_str(_payload, 'carrier') FROM flights WHERE _offset = 5").await,
            ["B6"]
        );
        assert_eq!(
            ask("SELECT sum((_payload->'dep_delay')::int) FROM flights").await,
            ["-100"],
            "{tier:?}"
        );
        assert_eq!(
            ask("SELECT max((_payload->'dep_delay')::double) FROM flights").await,
            ["396.0"]
        );
        assert_eq!(
            ask("SELECT _offset FROM flights WHERE _payload->'at'->>'gate' = 'B396'").await,
            ["396"]
        );
        assert_eq!(
            ask("SELECT count(*) FROM flights WHERE _payload ? 'at'").await,
            ["100"]
        );
        // What leaves is the text of the JSON, whatever `->` builds inside.
        assert_eq!(
            ask("SELECT _payload->'carrier', _payload->'dep_delay', _payload->'at' FROM flights WHERE _offset < 4 ORDER BY _offset").await,
            [r#""UA"|0|{"gate":"B0"}"#, r#""B6"|-1|"#, "||", "||"],
            "{tier:?}"
        );
    }
}

#[tokio::test]
async fn pub_08_stamps_beyond_the_signed_limit_are_null_and_fail_no_other_row() {
    let stamps = [
        0,
        1,
        1_700_000_000_123_456_789,
        (1 << 63) - 1,
        1 << 63,
        u64::MAX,
    ];
    let frames: Vec<_> = stamps
        .iter()
        .map(|stamp| Frame::record(*stamp, b"", b"x"))
        .collect();
    for tier in TIERS {
        let fixture = Fixture::new().await;
        fixture.create("t", 1, 1 << 20).await;
        fixture.place("t", tier, &frames).await;
        let expected = [
            "0|1970-01-01T00:00:00Z",
            "1|1970-01-01T00:00:00.000000001Z",
            "2|2023-11-14T22:13:20.123456789Z",
            "3|",
            "4|",
            "5|",
        ];
        assert_eq!(
            fixture
                .rows("SELECT _offset, _timestamp FROM t ORDER BY _offset")
                .await,
            expected,
            "{tier:?}"
        );
        let count = fixture
            .rows("SELECT count(*), count(_timestamp) FROM t")
            .await;
        assert_eq!(count, ["6|3"], "{tier:?}");
        let late = "SELECT _offset FROM t WHERE _timestamp >= TIMESTAMP '2023-01-01T00:00:00Z'";
        assert_eq!(fixture.rows(late).await, ["2"], "{tier:?}");
        let none = "SELECT _offset FROM t WHERE _timestamp IS NULL ORDER BY _offset";
        assert_eq!(fixture.rows(none).await, ["3", "4", "5"], "{tier:?}");
    }
}

#[tokio::test]
async fn pub_12_bytes_that_are_not_text_are_exact_and_break_nothing() {
    // A mebibyte of noise from a fixed seed; surely not UTF-8.
    let mut state = 12_u64;
    let noise: Vec<u8> = (0..1 << 20)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        })
        .collect();
    let payloads: [&[u8]; 6] = [
        b"abc",
        b"",
        b"\xff\xfe\x00",
        b"\xf0\x28\x8c\x28",
        b"\xc3\xa9",
        &noise,
    ];
    let frames: Vec<_> = payloads
        .iter()
        .map(|payload| Frame::record(1, b"", payload))
        .collect();
    for tier in TIERS {
        let fixture = Fixture::new().await;
        fixture.create("t", 1, 8 << 20).await;
        fixture.place("t", tier, &frames).await;
        let batches = fixture
            .batches("SELECT _payload FROM t ORDER BY _offset")
            .await
            .unwrap();
        let found: Vec<Vec<u8>> = batches
            .iter()
            .flat_map(|batch| {
                batch
                    .column(0)
                    .as_binary::<i32>()
                    .iter()
                    .map(|value| value.unwrap().to_vec())
            })
            .collect();
        assert_eq!(found, payloads, "{tier:?}");
        let ask = async |sql: &str| fixture.rows(sql).await;
        for equal in [
            "_payload = 'abc'",
            "'abc' = _payload",
            "_payload = X'616263'",
            "_payload IN ('abc', 'zzz')",
            "_payload BETWEEN 'abb' AND 'abd'",
            "_payload IS NOT DISTINCT FROM 'abc'",
            "_payload LIKE 'a%'",
            "_payload ILIKE 'A%'",
            "_payload ~ '^a.c$'",
            "_payload SIMILAR TO 'a.c'",
            "TRY_CAST(_payload AS VARCHAR) = 'abc'",
        ] {
            assert_eq!(
                ask(&format!("SELECT _offset FROM t WHERE {equal}")).await,
                ["0"],
                "{tier:?} {equal}"
            );
        }
        assert_eq!(
            ask("SELECT count(*) FROM t WHERE _payload NOT LIKE 'a%'").await,
            ["2"],
            "{tier:?}"
        );
        assert_eq!(
            ask("SELECT count(*) FROM t WHERE _payload <> 'abc'").await,
            ["5"],
            "{tier:?}"
        );
        let text = ask("SELECT TRY_CAST(_payload AS VARCHAR) FROM t ORDER BY _offset").await;
        assert_eq!(text, ["abc", "", "", "", "é", ""], "{tier:?}");
        let hex =
            ask("SELECT encode(_payload, 'hex') FROM t WHERE _offset < 5 ORDER BY _offset").await;
        assert_eq!(
            hex,
            ["616263", "", "fffe00", "f0288c28", "c3a9"],
            "{tier:?}"
        );
        assert_eq!(
            ask("SELECT count(*) FROM (SELECT _payload FROM t GROUP BY _payload)").await,
            ["6"],
            "{tier:?}"
        );
        // Asked for text without a way out, the statement fails cleanly, and the next one is answered.
        for strict in ["CAST(_payload AS VARCHAR)", "upper(_payload)"] {
            let error = fixture.error(&format!("SELECT {strict} FROM t")).await;
            assert_eq!(
                error.status().code(),
                tonic::Code::InvalidArgument,
                "{tier:?} {strict}: {error}"
            );
        }
        assert_eq!(ask("SELECT count(*) FROM t").await, ["6"], "{tier:?}");
    }
}

#[tokio::test]
async fn batch_frames_are_a_row_a_record_with_headers_and_nulls() {
    let headers = [
        RecordHeader {
            key: b"h",
            value: Some(b"1"),
        },
        RecordHeader {
            key: b"h",
            value: None,
        },
    ];
    for compression in [Compression::None, Compression::Zstd] {
        let mut writer = BatchWriter::new(BatchFields::compressed(compression)).unwrap();
        let record = |timestamp_ms, key, value, headers| RecordToWrite {
            timestamp_ms,
            key,
            value,
            headers,
        };
        writer
            .push(&record(
                5,
                Some(&b"k"[..]),
                Some(&br#"{"a":1}"#[..]),
                &headers[..],
            ))
            .unwrap();
        writer.push(&record(-5, None, None, &[])).unwrap();
        writer.push(&record(7, Some(b""), Some(b""), &[])).unwrap();
        let mut batch = Vec::new();
        writer.finish(&mut batch).unwrap();
        let frames = [
            Frame::record(1, b"", b"first"),
            Frame::batch(9, &batch, 3),
            Frame::record(2, b"", b"last"),
        ];
        for tier in TIERS {
            let fixture = Fixture::new().await;
            fixture.create("t", 1, 1 << 20).await;
            fixture.place("t", tier, &frames).await;
            let rows = fixture.rows("SELECT _offset, _timestamp, _key, _payload, _record_count FROM t ORDER BY _offset").await;
            let expected = [
                "0|1970-01-01T00:00:00.000000001Z||6669727374|1",
                "1|1970-01-01T00:00:00.005Z|6b|7b2261223a317d|1",
                "2||||1",
                "3|1970-01-01T00:00:00.007Z|||1",
                "4|1970-01-01T00:00:00.000000002Z||6c617374|1",
            ];
            assert_eq!(rows, expected, "{tier:?} {compression:?}");
            let nulls = "SELECT _key IS NULL, _payload IS NULL FROM t WHERE _offset IN (2, 3) ORDER BY _offset";
            assert_eq!(
                fixture.rows(nulls).await,
                ["true|true", "false|false"],
                "{tier:?}"
            );
            let headers = fixture
                .rows("SELECT _headers FROM t WHERE _offset = 1")
                .await;
            assert_eq!(
                headers,
                ["[{key: h, value: 31}, {key: h, value: }]"],
                "{tier:?}"
            );
            assert_eq!(
                fixture
                    .rows("SELECT count(*), count(_payload) FROM t")
                    .await,
                ["5|4"],
                "{tier:?}"
            );
        }
    }
}

#[tokio::test]
async fn pub_23_a_frame_over_several_offsets_is_one_row_and_its_gap_is_none() {
    for tier in TIERS {
        let fixture = Fixture::new().await;
        fixture.create("t", 1, 1 << 20).await;
        let mut spanning = Frame::record(1, b"", b"opaque");
        spanning.header.record_count = 10;
        let frames = [
            Frame::record(1, b"", b"a"),
            spanning,
            Frame::record(1, b"", b"b"),
            Frame::record(1, b"", b"c"),
        ];
        fixture.place("t", tier, &frames).await;
        let rows = fixture
            .rows("SELECT _offset, _record_count FROM t ORDER BY _offset")
            .await;
        assert_eq!(rows, ["0|1", "1|10", "11|1", "12|1"], "{tier:?}");
        assert_eq!(
            fixture
                .rows("SELECT count(*), sum(_record_count) FROM t")
                .await,
            ["4|13"],
            "{tier:?}"
        );
    }
}

#[tokio::test]
async fn pub_14_quoted_names_reach_exactly_their_topic() {
    let fixture = Fixture::new().await;
    let topics = [
        "a.b", "a_b", "Orders", "orders", "orders_1", "select", "1x", "eu-1",
    ];
    for topic in topics {
        fixture
            .create(topic, if topic == "orders" { 2 } else { 1 }, 1 << 20)
            .await;
        fixture.append_payloads(topic, 0, &[topic.as_bytes()]).await;
    }
    fixture
        .append_payloads("orders", 1, &[b"orders again"])
        .await;
    for cold in [false, true] {
        for topic in topics {
            if cold {
                fixture.cool(topic).await;
            }
            let sql = format!(
                "SELECT TRY_CAST(_payload AS VARCHAR) FROM \"{topic}\" WHERE _partition = 0"
            );
            assert_eq!(fixture.rows(&sql).await, [topic]);
        }
        assert_eq!(
            fixture.rows("SELECT count(*) FROM Orders").await,
            ["2"],
            "unquoted names fold to lower case"
        );
        assert_eq!(
            fixture
                .rows("SELECT count(*) FROM basalt.public.orders WHERE _partition = 1")
                .await,
            ["1"]
        );
    }
    for missing in ["\"ORDERS\"", "\"a.B\"", "\"../x\"", "nothing", "a.b"] {
        let error = fixture.error(&format!("SELECT * FROM {missing}")).await;
        assert_eq!(
            error.status().code(),
            tonic::Code::InvalidArgument,
            "{missing}: {error}"
        );
    }
}

#[tokio::test]
async fn partitions_are_one_table_and_each_is_cold_up_to_its_own_offset() {
    let fixture = Fixture::new().await;
    fixture.create("t", 3, 2 << 10).await;
    for round in 0..60_u64 {
        for partition in 0..3 {
            fixture
                .append(
                    "t",
                    partition,
                    &[Frame::record(round, b"key", b"some payload of a record")],
                )
                .await;
        }
        if round == 40 {
            fixture.cool("t").await;
        }
    }
    let rows = "SELECT _partition, count(*), count(DISTINCT _offset), min(_offset), max(_offset) FROM t GROUP BY 1 ORDER BY 1";
    assert_eq!(
        fixture.rows(rows).await,
        ["0|60|60|0|59", "1|60|60|0|59", "2|60|60|0|59"]
    );
    // A topic joined with itself sees one snapshot.
    let joined = "SELECT count(*) FROM t a JOIN t b ON a._partition = b._partition AND a._offset = b._offset";
    assert_eq!(fixture.rows(joined).await, ["180"]);
    let bounds = "SELECT partition, log_start_offset, cold_end_offset, high_watermark, log_end_offset FROM sys.partitions ORDER BY 1";
    assert_eq!(
        fixture.rows(bounds).await,
        ["0|0|41|60|60", "1|0|41|60|60", "2|0|41|60|60"]
    );
    assert_eq!(
        fixture
            .tiered
            .partition(&name("t"), PartitionId(0))
            .unwrap()
            .bounds()
            .cold_end_offset
            .0,
        41
    );
}

#[tokio::test]
async fn a_snapshot_outlives_the_cooling_of_what_it_reads() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 2 << 10).await;
    let payload = vec![b'x'; 100];
    for _ in 0..200 {
        fixture
            .append("t", 0, &[Frame::record(1, b"", &payload)])
            .await;
    }
    let rows = fixture
        .engine
        .query("SELECT _offset, _payload FROM t")
        .await
        .unwrap();
    fixture.cool("t").await;
    let batches: Vec<_> = futures::TryStreamExt::try_collect(rows).await.unwrap();
    assert_eq!(rows_of(&batches).len(), 200);
    assert_eq!(fixture.rows("SELECT count(*) FROM t").await, ["200"]);
    assert!(
        batches
            .iter()
            .all(|batch| batch.column(1).null_count() == 0)
    );
}

/// The log's start may lie in the midst of a block, a batch or a file: whatever columns are asked for, what is from there on is seen.
#[tokio::test]
async fn what_is_from_a_start_in_the_midst_on_is_seen_in_whatever_columns() {
    for is_cold in [false, true] {
        for start in [5_u64, 13, 19, 20] {
            let fixture = Fixture::new().await;
            fixture.create("t", 1, 1 << 20).await;
            let payloads: Vec<_> = (0..10).map(|at| format!("v{at}")).collect();
            let payloads: Vec<_> = payloads.iter().map(String::as_bytes).collect();
            fixture.append_payloads("t", 0, &payloads).await;
            let mut writer = BatchWriter::new(BatchFields::default()).unwrap();
            for at in 10..20 {
                let value = format!("v{at}");
                let record = RecordToWrite {
                    timestamp_ms: 1,
                    key: Some(b"k"),
                    value: Some(value.as_bytes()),
                    headers: &[],
                };
                writer.push(&record).unwrap();
            }
            let mut batch = Vec::new();
            writer.finish(&mut batch).unwrap();
            fixture
                .append("t", 0, &[Frame::batch(1_000_000, &batch, 10)])
                .await;
            if is_cold {
                fixture.cool("t").await;
            }
            let partition = fixture
                .tiered
                .partition(&name("t"), PartitionId(0))
                .unwrap();
            partition.delete_before(Offset(start)).await.unwrap();
            let rows = async |sql: &str| {
                let rows = fixture.rows(sql).await;
                assert!(rows.len() <= 1, "{rows:?}");
                rows.into_iter().next().unwrap_or_default()
            };
            let (left, last) = (20 - start, 19);
            let what = format!("cold: {is_cold}, from {start}");
            assert_eq!(
                rows("SELECT count(*) FROM t").await,
                left.to_string(),
                "{what}"
            );
            if left == 0 {
                continue;
            }
            let bounds = "SELECT min(_offset), max(_offset), count(*) FROM t";
            assert_eq!(
                rows(bounds).await,
                format!("{start}|{last}|{left}"),
                "{what}"
            );
            let counts = "SELECT sum(_record_count) FROM t";
            assert_eq!(rows(counts).await, left.to_string(), "{what}");
            let both = "SELECT sum(_record_count), min(_offset), min(_payload::text) FROM t";
            let least = (start..20).map(|at| format!("v{at}")).min().unwrap();
            assert_eq!(
                rows(both).await,
                format!("{left}|{start}|{least}"),
                "{what}"
            );
            let all = "SELECT count(*) FROM (SELECT * FROM t)";
            assert_eq!(rows(all).await, left.to_string(), "{what}");
        }
    }
}
