//! Shredded payloads on the whole path: log, cold file, manifest, replay.

mod flights;

use basalt_proto::batch::{BatchFields, BatchWriter, RecordToWrite};
use basalt_proto::{Frame, Offset};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::statistics::Statistics;

use super::json::Pen;
use super::support::{Fixture, Random, Setup, append, cold_rows, records, replay, seeds, topic};
use crate::TieredPartition;
use crate::check::check_cold;
use crate::shred::Shredding;

fn shredding_setup() -> Setup {
    Setup {
        shred_json: true,
        segment_bytes: 64 << 10,
        row_group_bytes: 16 << 10,
        ..Setup::new()
    }
}

/// A batch frame of JSON payloads, some of them null.
fn json_batch(random: &mut Random, pen: &Pen, out: &mut Vec<u8>) {
    let fields = BatchFields {
        base_offset: 0,
        partition_leader_epoch: -1,
        attributes: i16::try_from(random.below(5)).unwrap(),
        base_timestamp_ms: None,
        max_timestamp_ms: None,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
    };
    let mut writer = BatchWriter::new(fields).unwrap();
    for at in 0..=random.below(20) {
        let payload = (!random.one_in(9)).then(|| pen.payload(random));
        let record = RecordToWrite {
            timestamp_ms: 1_700_000_000_000 + at.cast_signed(),
            key: None,
            value: payload.as_deref(),
            headers: &[],
        };
        writer.push(&record).unwrap();
    }
    let record_count = writer.record_count();
    let mut batch = Vec::new();
    writer.finish(&mut batch).unwrap();
    Frame::batch(random.stamp_ns(), &batch, record_count).encode_into(out);
}

/// How many rows are cold, and how many of them have no payload but a template.
async fn shredded_rows(fixture: &Fixture, partition: &TieredPartition) -> (usize, usize) {
    let (mut rows, mut shredded) = (0, 0);
    for file in &partition.snapshot().cold {
        for batch in cold_rows(fixture.tiered.store(), file).await {
            assert_eq!(batch.schema().fields(), file.schema().fields());
            rows += batch.num_rows();
            let templates = batch.column_by_name("_template");
            assert_eq!(templates.is_some(), file.shredded.is_some());
            shredded += templates.map_or(0, |column| column.len() - column.null_count());
        }
    }
    (rows, shredded)
}

async fn append_payloads(partition: &TieredPartition, payloads: impl Iterator<Item = String>) {
    let mut frames = Vec::new();
    for payload in payloads {
        Frame::record(1, b"", payload.as_bytes()).encode_into(&mut frames);
    }
    append(partition, &frames).await;
}

/// P2 for shredded payloads: whatever JSON, or nearly JSON, is produced, the same bytes are replayed.
#[tokio::test]
async fn fuzzed_json_is_replayed_byte_for_byte() {
    let (mut rows, mut shredded) = (0, 0);
    for seed in seeds(24) {
        let mut random = Random::new("fuzzed_json", seed);
        let setup = shredding_setup();
        let fixture = setup.open().await;
        let partition = fixture.partition();
        let pens: Vec<_> = (0..=random.below(2))
            .map(|_| Pen::new(&mut random))
            .collect();
        let with_batches = random.one_in(3);
        for at in 0..6 {
            let mut frames = Vec::new();
            let pen = &pens[usize::try_from(random.below(pens.len() as u64)).unwrap()];
            for _ in 0..=random.below(150) {
                if with_batches && random.one_in(5) {
                    json_batch(&mut random, pen, &mut frames);
                } else {
                    let payload = pen.payload(&mut random);
                    Frame::record(at, b"key", &payload).encode_into(&mut frames);
                }
            }
            append(&partition, &frames).await;
        }
        let hot = replay(&partition, Offset::ZERO).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        assert_eq!(partition.bounds().hot_bytes, 0);
        let cold = replay(&partition, Offset::ZERO).await;
        if with_batches {
            assert!(records(&cold) == records(&hot), "seed {seed}");
        } else {
            assert!(cold == hot, "seed {seed}");
        }
        let (some_rows, some_shredded) = shredded_rows(&fixture, &partition).await;
        rows += some_rows;
        shredded += some_shredded;
        drop((partition, fixture));

        let fixture = setup.open().await;
        let partition = fixture.partition();
        assert!(
            replay(&partition, Offset::ZERO).await == cold,
            "seed {seed}"
        );
        let key = (topic("t"), partition.topic_id().0, partition.id());
        let findings = check_cold(&setup.cold_dir(), &[key]).await;
        assert!(findings.is_empty(), "{findings:?}");
    }
    assert!(
        shredded * 4 > rows,
        "{shredded} of {rows} rows were shredded"
    );
}

#[tokio::test]
async fn files_with_different_columns_and_without_any_are_one_log() {
    let mut setup = shredding_setup();
    setup.shred_json = false;
    let fixture = setup.open().await;
    let partition = fixture.partition();
    let objects = |key: &'static str| (0..300).map(move |at| format!("{{\"{key}\":{at}}}"));
    append_payloads(&partition, objects("a")).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    assert_eq!(
        shredded_rows(&fixture, &partition).await,
        (300, 0),
        "it was off"
    );
    drop((partition, fixture));

    setup.shred_json = true;
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_payloads(&partition, objects("b")).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    append_payloads(&partition, objects("c")).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    append_payloads(&partition, (0..300).map(|at| format!("line {at}"))).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    assert_eq!(shredded_rows(&fixture, &partition).await, (1200, 600));
    let all = replay(&partition, Offset::ZERO).await;
    drop((partition, fixture));

    // Whatever the setting, what was shredded is rendered.
    setup.shred_json = false;
    let fixture = setup.open().await;
    let partition = fixture.partition();
    let names: Vec<_> = partition
        .snapshot()
        .cold
        .iter()
        .map(|file| {
            file.shredded
                .as_ref()
                .map(|columns| columns[0].name.clone())
        })
        .collect();
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(names, [None, name("payload.b"), name("payload.c"), None]);
    assert!(replay(&partition, Offset::ZERO).await == all);
    let seen = records(&all);
    assert_eq!(seen.len(), 1200);
    assert_eq!(seen[300].payload.as_deref(), Some(&b"{\"b\":0}"[..]));
    assert_eq!(seen[1199].payload.as_deref(), Some(&b"line 299"[..]));
}

/// Whatever pens wrote them, files with different columns and without any become one, with the columns of all.
#[tokio::test]
async fn files_are_merged_whatever_columns_they_have() {
    let (mut all_rows, mut all_shredded) = (0, 0);
    for seed in seeds(12) {
        let mut random = Random::new("files_are_merged", seed);
        let mut setup = shredding_setup();
        setup.merge_bytes = 4 << 20;
        let with_batches = random.one_in(2);
        let pens: Vec<_> = (0..2).map(|_| Pen::new(&mut random)).collect();
        for _ in 0..5 {
            setup.shred_json = !random.one_in(4);
            let fixture = setup.open().await;
            let pen = &pens[usize::try_from(random.below(2)).unwrap()];
            let mut frames = Vec::new();
            for _ in 0..200 {
                if with_batches && random.one_in(5) {
                    json_batch(&mut random, pen, &mut frames);
                } else {
                    let payload = pen.payload(&mut random);
                    Frame::record(1, b"key", &payload).encode_into(&mut frames);
                }
            }
            append(&fixture.partition(), &frames).await;
            fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
        }
        setup.shred_json = true;
        let fixture = setup.open().await;
        let partition = fixture.partition();
        let all = replay(&partition, Offset::ZERO).await;
        let (rows, _) = shredded_rows(&fixture, &partition).await;
        let report = fixture.tiered.maintain().await;
        assert!(report.errors.is_empty(), "{report:?}");
        assert_eq!(report.merged.rows, rows as u64, "seed {seed}");
        assert_eq!(partition.snapshot().cold.len(), 1);
        let (rows_then, shredded) = shredded_rows(&fixture, &partition).await;
        assert_eq!(rows_then, rows);
        all_rows += rows;
        all_shredded += shredded;
        let key = (topic("t"), partition.topic_id().0, partition.id());
        assert_eq!(check_cold(&setup.cold_dir(), &[key]).await, []);
        drop((partition, fixture));

        let fixture = setup.open().await;
        let again = replay(&fixture.partition(), Offset::ZERO).await;
        assert!(again == all, "seed {seed}");
    }
    assert!(
        all_shredded * 4 > all_rows,
        "{all_shredded} of {all_rows} rows were shredded"
    );
}

/// What would have to be rendered to stand as it is stays in its files.
#[tokio::test]
async fn shredded_files_are_left_alone_where_payloads_are_not_shredded_any_more() {
    let mut setup = shredding_setup();
    setup.merge_bytes = 4 << 20;
    for shred_json in [true, true, false, false] {
        setup.shred_json = shred_json;
        let fixture = setup.open().await;
        let objects = (0..300).map(|at| format!("{{\"a\":{at}}}"));
        append_payloads(&fixture.partition(), objects).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    }
    let fixture = setup.open().await;
    let partition = fixture.partition();
    let all = replay(&partition, Offset::ZERO).await;
    let report = fixture.tiered.maintain().await;
    assert!(report.errors.is_empty(), "{report:?}");
    assert_eq!(report.merged.files_in, 2);
    let cold = partition.snapshot().cold;
    let shredded: Vec<_> = cold.iter().map(|file| file.shredded.is_some()).collect();
    assert_eq!(shredded, [true, true, false]);
    assert!(replay(&partition, Offset::ZERO).await == all);
    assert_eq!(shredded_rows(&fixture, &partition).await, (1200, 600));
}

/// A topic's own setting goes before the server's, for what is written from then on.
#[tokio::test]
async fn a_topic_may_say_whether_its_payloads_are_shredded() {
    let fixture = shredding_setup().open().await;
    let partition = fixture.partition();
    for shred_json in [None, Some(false), Some(true)] {
        fixture.configure(|config| config.shred_json = shred_json);
        append_payloads(&partition, (0..300).map(|at| format!("{{\"a\":{at}}}"))).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    }
    let cold = partition.snapshot().cold;
    let shredded: Vec<_> = cold.iter().map(|file| file.shredded.is_some()).collect();
    assert_eq!(shredded, [true, false, true]);
}

/// A manifest and a footer that name different columns: nothing is rendered from them.
#[tokio::test]
async fn a_file_that_was_exchanged_for_one_with_other_columns_is_refused() {
    let setup = shredding_setup();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_payloads(&partition, (0..300).map(|at| format!("{{\"a\":{at}}}"))).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    {
        let mut state = partition.state.lock();
        let file = state.manifest.files.pop().unwrap();
        let mut columns = file.shredded.clone().unwrap().to_vec();
        columns[0].path = vec!["b".to_owned()];
        let other = crate::ColdFile {
            shredded: Some(columns.into()),
            ..(*file).clone()
        };
        state.manifest.files.push(std::sync::Arc::new(other));
    }
    let refused = partition.read(Offset::ZERO, Offset::MAX, 1).await;
    let error = refused.map(drop).unwrap_err();
    let chain = crate::error::Chain(&error).to_string();
    assert!(
        chain.contains("the manifest names other columns"),
        "{chain}"
    );
}

/// What the crate that speaks SQL is to do: read a file by its own schema, and render.
#[tokio::test]
async fn a_reader_of_parquet_renders_payloads_from_the_footer_alone() {
    let setup = shredding_setup();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    let payloads: Vec<_> = (0..500)
        .map(|at| format!("{{\"a\": {at}, \"b\": \"x{at}\"}}"))
        .collect();
    append_payloads(&partition, payloads.iter().cloned()).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let mut rendered = Vec::new();
    for file in &partition.snapshot().cold {
        let bytes = fixture.tiered.store().get(&file.path).await.unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap();
        let pairs = reader.metadata().file_metadata().key_value_metadata();
        let shredding = Shredding::from_metadata(pairs).unwrap().unwrap();
        assert_eq!(Some(shredding.columns()), file.shredded.as_ref());
        for group in reader.metadata().row_groups() {
            let statistics = |at: usize| group.column(at).statistics().unwrap();
            let rows = u64::try_from(group.num_rows()).unwrap();
            let template = group.num_columns() - 3;
            assert_eq!(statistics(template).null_count_opt(), Some(0));
            let Statistics::Int64(numbers) = statistics(template + 1) else {
                panic!("the numbers are a column of Int64");
            };
            let range = numbers.max_opt().unwrap() - numbers.min_opt().unwrap();
            assert_eq!(range.cast_unsigned() + 1, rows);
            assert_eq!(statistics(template + 2).min_bytes_opt().unwrap()[0], b'x');
        }
        let mask = ProjectionMask::roots(reader.parquet_schema(), shredding.payload_columns());
        for rows in reader.with_projection(mask).build().unwrap() {
            let column = shredding.render(&rows.unwrap()).unwrap();
            rendered.extend(column.iter().map(|payload| payload.unwrap().to_vec()));
        }
    }
    assert_eq!(rendered.len(), 500);
    assert!(
        rendered
            .iter()
            .zip(&payloads)
            .all(|(found, payload)| found == payload.as_bytes())
    );
}
