//! Cold files of topics with a schema.

use std::sync::Arc;

use arrow::array::{Array as _, AsArray as _, RecordBatch};
use arrow::datatypes::Int64Type;
use basalt_log::{TopicConfig, TopicError};
use basalt_proto::{Frame, Offset, PartitionId};
use basalt_schema::TopicSchema;
use parquet::file::reader::{FileReader as _, SerializedFileReader};

use super::support::{Fixture, Setup, append, cold_rows, files_below, replay, topic};
use crate::check::check_cold;
use crate::typed::MoreColumns;
use crate::{ColdFile, RowBuilder, TieredPartition};

const SCHEMA: &str =
    r#"{"format":"json","columns":[{"name":"n","type":"int64"},{"name":"s","type":"string"}]}"#;

fn set_schema(fixture: &Fixture, text: Option<&str>) {
    fixture
        .tiered
        .alter_topic(&topic("t"), |config| {
            Ok::<_, TopicError>(TopicConfig {
                schema: text.map(Into::into),
                ..config.clone()
            })
        })
        .unwrap();
}

/// Appends records of which every fifth does not fit, and returns them as they will be replayed.
async fn append_some(partition: &TieredPartition, from: i64) {
    let mut frames = Vec::new();
    for n in from..from + 50 {
        let payload = match n % 5 {
            0 => format!("no {n}"),
            1 => format!(r#"{{"n":"{n}","s":"x"}}"#),
            _ => format!(r#"{{"n":{n},"s":"s{n}","more":{n}.5}}"#),
        };
        Frame::record(1, b"", payload.as_bytes()).encode_into(&mut frames);
    }
    append(partition, &frames).await;
}

async fn rows(fixture: &Fixture, file: &Arc<ColdFile>) -> RecordBatch {
    let batches = cold_rows(fixture.tiered.store(), file).await;
    let schema = batches[0].schema();
    assert_eq!(schema.fields(), file.schema().fields());
    arrow::compute::concat_batches(&schema, &batches).unwrap()
}

fn check_columns(rows: &RecordBatch) {
    let numbers = rows
        .column_by_name("n")
        .unwrap()
        .as_primitive::<Int64Type>();
    let texts = rows.column_by_name("s").unwrap().as_string::<i32>();
    let errors = rows.column_by_name("_error").unwrap().as_string::<i32>();
    let offsets = rows
        .column_by_name("_offset")
        .unwrap()
        .as_primitive::<Int64Type>();
    for row in 0..rows.num_rows() {
        let n = offsets.value(row);
        let fits = n % 5 > 1;
        assert_eq!(numbers.is_valid(row), fits, "{n}");
        assert_eq!(texts.is_valid(row), fits, "{n}");
        assert_eq!(errors.is_null(row), fits, "{n}");
        if fits {
            assert_eq!(numbers.value(row), n);
            assert_eq!(texts.value(row), format!("s{n}"));
        }
    }
}

#[tokio::test]
async fn declared_columns_stand_in_cold_files_and_replay_is_what_it_was() {
    for shred_json in [false, true] {
        let mut setup = Setup::new();
        setup.shred_json = shred_json;
        let fixture = setup.open().await;
        let partition = fixture.partition();
        append_some(&partition, 0).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        set_schema(&fixture, Some(SCHEMA));
        append_some(&partition, 50).await;
        let before = replay(&partition, Offset::ZERO).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        let files = partition.snapshot().cold;
        assert!(
            files[0].typed.is_none(),
            "written before there was a schema"
        );
        let typed: Vec<_> = files.iter().filter(|file| file.typed.is_some()).collect();
        assert!(!typed.is_empty());
        for file in typed {
            check_columns(&rows(&fixture, file).await);
        }
        assert!(replay(&partition, Offset::ZERO).await == before);
        let key = (topic("t"), partition.topic_id().0, partition.id());
        assert_eq!(check_cold(&setup.cold_dir(), &[key]).await, []);
        drop((partition, fixture));

        // What the manifest says of them is read again.
        let fixture = setup.open().await;
        let partition = fixture.partition();
        assert_eq!(partition.snapshot().cold.len(), files.len());
        for (found, file) in partition.snapshot().cold.iter().zip(&files) {
            assert_eq!(found.typed, file.typed);
        }
        assert!(replay(&partition, Offset::ZERO).await == before);
    }
}

/// Five bytes of a payload may be a million items: eight thousand of such rows would be too much for one batch.
#[test]
fn rows_whose_declared_columns_are_large_are_written_in_pieces() {
    let schema = r#"{"format":"avro","avro":{"schema":{"type":"record","name":"R","fields":[
        {"name":"a","type":{"type":"array","items":"null"}}]}},"columns":[{"name":"a","type":"list<int64>"}]}"#;
    let schema = Arc::new(TopicSchema::parse(schema).unwrap());
    let mut rows = RowBuilder::new(PartitionId(0));
    for offset in 0..9 {
        let mut frame = Frame::record(1, b"", &[0x80, 0x89, 0x7A, 0]);
        frame.header.offset = Offset(offset);
        rows.push(&frame).unwrap();
    }
    let mut columns = MoreColumns::new(None, Some(&schema));
    let mut pieces = Vec::new();
    let mut offsets = Vec::new();
    columns
        .extend(rows.finish(), |piece| {
            let items = piece.column_by_name("a").unwrap().as_list::<i32>();
            pieces.push((piece.num_rows(), items.values().len()));
            let of_piece = piece.column_by_name("_offset").unwrap();
            offsets.extend_from_slice(of_piece.as_primitive::<Int64Type>().values());
            Ok(())
        })
        .unwrap();
    let million = 1_000_000;
    assert_eq!(pieces, [(4, 4 * million), (4, 4 * million), (1, million)]);
    assert_eq!(offsets, (0..9).collect::<Vec<_>>());
}

/// Cools records of a topic with this schema, and says of each column of the file in how many of its row groups something tells which
/// values it has.
async fn bounded_row_groups(schema: &str, payloads: &[Vec<u8>]) -> (usize, Vec<(String, usize)>) {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    set_schema(&fixture, Some(schema));
    let mut frames = Vec::new();
    for payload in payloads {
        Frame::record(1, b"", payload).encode_into(&mut frames);
    }
    append(&partition, &frames).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let files = partition.snapshot().cold;
    assert_eq!(files.len(), 1);
    let errors = rows(&fixture, &files[0]).await;
    let errors = errors.column_by_name("_error").unwrap();
    assert_eq!(errors.null_count(), payloads.len(), "all of them fit");
    let mut names = files_below(&setup.cold_dir()).into_keys();
    let name = names.find(|name| name.ends_with(".parquet"));
    let file = std::fs::File::open(setup.cold_dir().join(name.unwrap())).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let groups = reader.metadata().row_groups();
    let columns = (0..groups[0].num_columns()).map(|at| {
        let bounded = groups.iter().filter(|group| {
            let column = group.column(at);
            let statistics = column.statistics();
            let has_bounds = statistics.is_some_and(|statistics| {
                statistics.min_bytes_opt().is_some() || statistics.max_bytes_opt().is_some()
            });
            has_bounds
                || column.column_index_offset().is_some()
                || column.bloom_filter_offset().is_some()
        });
        (groups[0].column(at).column_path().string(), bounded.count())
    });
    let declared = columns.skip_while(|(name, _)| name != "f").collect();
    (groups.len(), declared)
}

fn doubles(payload: impl Fn(f64) -> Vec<u8>) -> Vec<Vec<u8>> {
    [1.0, f64::NAN, f64::NEG_INFINITY].map(payload).into()
}

/// A row group of 1.0 and NaN said that nothing in it is above 1.0, and `f > 5` showed a hot NaN and no cold one.
#[tokio::test]
async fn columns_that_may_hold_nan_have_no_bounds() {
    let avro = r#"{"format":"avro","avro":{"schema":{"type":"record","name":"R","fields":[
        {"name":"f","type":"double"},{"name":"g","type":"float"},{"name":"n","type":"long"},
        {"name":"l","type":{"type":"array","items":"double"}},
        {"name":"s","type":{"type":"record","name":"S","fields":[{"name":"x","type":"double"}]}}]}}}"#;
    #[expect(clippy::cast_possible_truncation, reason = "it is exact")]
    let payloads = doubles(|value| {
        let (double, float) = (value.to_le_bytes(), (value as f32).to_le_bytes());
        [&double[..], &float, &[14, 2], &double, &[0], &double].concat()
    });
    let (groups, columns) = bounded_row_groups(avro, &payloads).await;
    let bounded = |expected: &[(&str, bool)]| {
        let count = |(name, has): &(&str, bool)| ((*name).to_owned(), usize::from(*has) * groups);
        expected.iter().map(count).collect::<Vec<_>>()
    };
    let nested = [("l.list.item", false), ("s.x", false)];
    let flat = [("f", false), ("g", false), ("n", true)];
    let flat_and_nested = [&flat[..], &nested].concat();
    assert_eq!(columns[..5], bounded(&flat_and_nested));

    let protobuf = r#"{"format":"protobuf","protobuf":{"proto":"syntax = \"proto3\"; message M { double f = 1; float g = 2; int64 n = 3; }"}}"#;
    #[expect(clippy::cast_possible_truncation, reason = "it is exact")]
    let payloads = doubles(|value| {
        let (double, float) = (value.to_le_bytes(), (value as f32).to_le_bytes());
        [&[9][..], &double, &[0x15], &float, &[0x18, 7]].concat()
    });
    let (_, columns) = bounded_row_groups(protobuf, &payloads).await;
    assert_eq!(columns[..3], bounded(&flat));

    let json = r#"{"format":"json","columns":[{"name":"f","type":"float64"},{"name":"g","type":"float32"}]}"#;
    let payloads = [1.0, -0.5].map(|value| format!(r#"{{"f":{value},"g":{value}}}"#).into_bytes());
    let (_, columns) = bounded_row_groups(json, &payloads).await;
    assert_eq!(columns[..2], bounded(&[("f", true), ("g", true)]));
}

#[tokio::test]
async fn merged_files_have_the_columns_of_the_schema_of_their_own_time() {
    let mut setup = Setup::new();
    setup.merge_bytes = 4 << 20;
    let fixture = setup.open().await;
    let partition = fixture.partition();
    let other = r#"{"format":"json","columns":[{"name":"more","type":"float64"}]}"#;
    for (from, schema) in [(0, None), (50, Some(SCHEMA)), (100, Some(other))] {
        set_schema(&fixture, schema);
        append_some(&partition, from).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    }
    let before = replay(&partition, Offset::ZERO).await;
    set_schema(&fixture, Some(SCHEMA));
    let report = fixture.tiered.maintain().await;
    assert!(report.errors.is_empty(), "{report:?}");
    let files = partition.snapshot().cold;
    assert_eq!(files.len(), 1);
    let rows = rows(&fixture, &files[0]).await;
    assert_eq!(rows.num_rows(), 150);
    check_columns(&rows);
    assert!(rows.column_by_name("more").is_none());
    assert!(replay(&partition, Offset::ZERO).await == before);
}
