//! Cold files of topics with a schema.

use std::sync::Arc;

use arrow::array::{Array as _, AsArray as _, RecordBatch};
use arrow::datatypes::Int64Type;
use basalt_log::{TopicConfig, TopicError};
use basalt_proto::{Frame, Offset, PartitionId};
use basalt_schema::TopicSchema;

use super::support::{Fixture, Setup, append, cold_rows, replay, topic};
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
