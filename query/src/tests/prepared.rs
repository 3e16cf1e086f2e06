//! Prepared statements with parameters, over a real connection.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Float64Array, Int32Array, Int64Array, NullArray, RecordBatch, StringArray,
    TimestampNanosecondArray,
};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::sql::client::PreparedStatement;
use arrow_flight::sql::{
    ActionCreatePreparedStatementRequest, CommandPreparedStatementQuery,
    DoPutPreparedStatementResult, ProstMessageExt,
};
use arrow_flight::{Action, FlightDescriptor};
use basalt_proto::Frame;
use bytes::Bytes;
use futures::{TryStreamExt, stream};
use prost::Message;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::flight::{Serving, serving};
use super::rows_of;

type Prepared = PreparedStatement<Channel>;

/// Ten records with payloads `{"n":0}` to `{"n":9}`, the first half cold.
async fn ten_records() -> Serving {
    let serving = serving().await;
    serving.fixture.create("t", 1, 1 << 20).await;
    for number in 0..10_u64 {
        if number == 5 {
            serving.fixture.cool("t").await;
        }
        let payload = format!(r#"{{"n":{number}}}"#);
        serving
            .fixture
            .append("t", 0, &[Frame::record(number, b"key", payload.as_bytes())])
            .await;
    }
    serving
}

fn values(columns: &[ArrayRef]) -> RecordBatch {
    let named = columns.iter().enumerate();
    RecordBatch::try_from_iter(named.map(|(index, column)| (index.to_string(), Arc::clone(column))))
        .unwrap()
}

fn int(values: impl Into<Vec<Option<i64>>>) -> ArrayRef {
    Arc::new(Int64Array::from(values.into()))
}

fn text(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

impl Serving {
    async fn prepare(&mut self, sql: &str) -> Prepared {
        self.client.prepare(sql.to_owned(), None).await.unwrap()
    }

    /// Binds, executes, and checks that what was announced is what comes.
    async fn bound(&mut self, prepared: &mut Prepared, columns: &[ArrayRef]) -> Vec<String> {
        prepared.set_parameters(values(columns)).unwrap();
        let info = prepared.execute().await.unwrap();
        let announced = info.clone().try_decode_schema().unwrap();
        let (streamed, batches) = self.fetch(&info).await;
        assert_eq!(*streamed, announced, "QRY-2");
        rows_of(&batches)
    }

    async fn answer(&mut self, sql: &str, columns: &[ArrayRef]) -> Vec<String> {
        let mut prepared = self.prepare(sql).await;
        self.bound(&mut prepared, columns).await
    }

    /// Why `columns` cannot be bound or the statement not be run with them.
    async fn refusal(&mut self, sql: &str, columns: &[ArrayRef]) -> String {
        let mut prepared = self.prepare(sql).await;
        prepared.set_parameters(values(columns)).unwrap();
        prepared.execute().await.unwrap_err().to_string()
    }

    /// The handle of `sql` as it comes over the wire.
    async fn handle(&mut self, sql: &str) -> Bytes {
        let request = ActionCreatePreparedStatementRequest {
            query: sql.to_owned(),
            transaction_id: None,
        };
        let action = Action {
            r#type: "CreatePreparedStatement".to_owned(),
            body: request.as_any().encode_to_vec().into(),
        };
        let mut results = self
            .client
            .inner_mut()
            .do_action(action)
            .await
            .unwrap()
            .into_inner();
        let result = results.try_next().await.unwrap().unwrap();
        let any = arrow_flight::sql::Any::decode(result.body).unwrap();
        any.unpack::<arrow_flight::sql::ActionCreatePreparedStatementResult>()
            .unwrap()
            .unwrap()
            .prepared_statement_handle
    }

    /// Binds to a handle by hand, and gives the new one.
    async fn bind(&mut self, handle: Bytes, columns: &[ArrayRef]) -> Result<Bytes, Status> {
        let command = CommandPreparedStatementQuery {
            prepared_statement_handle: handle,
        };
        let batch = values(columns);
        let data: Vec<_> = FlightDataEncoderBuilder::new()
            .with_flight_descriptor(Some(FlightDescriptor::new_cmd(
                command.as_any().encode_to_vec(),
            )))
            .with_schema(batch.schema())
            .build(stream::iter([Ok(batch)]))
            .try_collect()
            .await
            .unwrap();
        let answer = self.client.inner_mut().do_put(stream::iter(data)).await?;
        let result = answer.into_inner().message().await?.unwrap();
        let result = DoPutPreparedStatementResult::decode(result.app_metadata).unwrap();
        Ok(result.prepared_statement_handle.unwrap())
    }
}

#[tokio::test]
async fn pub_24_values_take_the_places_in_which_they_were_written() {
    let mut serving = ten_records().await;
    let expected = ["x|2", "x|3", "x|4"];
    let bounds = |from, to| [text(&["x"]), int([Some(from)]), int([Some(to)])];
    for sql in [
        r#"SELECT ? AS tag, _offset FROM t WHERE _offset >= ? AND "_offset" < ? ORDER BY 2"#,
        "SELECT $1 AS tag, _offset FROM t WHERE _offset >= $2 AND _offset < $3 ORDER BY 2",
    ] {
        assert_eq!(serving.answer(sql, &bounds(2, 5)).await, expected, "{sql}");
    }
    let turned =
        "SELECT $3 AS tag, $1, _offset FROM t WHERE _offset >= $1 AND _offset < $1 + 2 ORDER BY 3";
    let columns = [int([Some(2)]), int([None]), text(&["x"])];
    assert_eq!(serving.answer(turned, &columns).await, ["x|2|2", "x|2|3"]);
    let later = "SELECT $2 FROM t WHERE _offset = $1";
    let columns = [int([Some(7)]), text(&["y"])];
    assert_eq!(serving.answer(later, &columns).await, ["y"]);
    // A value before the select list's own, in a subquery, and again after it.
    let nested = "SELECT (SELECT max(_offset) FROM t WHERE _offset < ?), _offset FROM t WHERE _offset IN (?, ?) ORDER BY _offset LIMIT ? OFFSET ?";
    let columns = [4, 1, 8, 5, 1].map(|value| int([Some(value)]));
    assert_eq!(serving.answer(nested, &columns).await, ["3|8"]);
}

#[tokio::test]
async fn pub_24_a_parameter_without_a_type_takes_that_of_its_value() {
    let mut serving = ten_records().await;
    let mut prepared = serving.prepare("SELECT ?").await;
    let dataset = prepared.dataset_schema().unwrap().clone();
    assert_eq!(
        dataset,
        Schema::new(vec![Field::new("$1", DataType::Utf8, true)])
    );
    let stamp: ArrayRef =
        Arc::new(TimestampNanosecondArray::from(vec![1_000]).with_timezone("UTC"));
    for (value, expected) in [
        (text(&["x"]), "x"),
        (int([Some(-3)]), "-3"),
        (Arc::new(Int32Array::from(vec![3])) as _, "3"),
        (Arc::new(Float64Array::from(vec![0.5])) as _, "0.5"),
        (stamp, "1970-01-01T00:00:00.000001Z"),
        (Arc::new(NullArray::new(1)) as _, ""),
        (int([None]), ""),
    ] {
        let wanted = match value.data_type() {
            DataType::Null => DataType::Utf8,
            other => other.clone(),
        };
        prepared.set_parameters(values(&[value])).unwrap();
        let info = prepared.execute().await.unwrap();
        let (schema, batches) = serving.fetch(&info).await;
        assert_eq!(schema.field(0).data_type(), &wanted);
        assert_eq!(rows_of(&batches), [expected]);
    }
}

#[tokio::test]
async fn pub_24_the_parameters_are_announced_with_the_types_of_their_use() {
    let mut serving = ten_records().await;
    let stamp = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
    for (sql, parameters, results) in [
        (
            "SELECT ? AS tag, _offset FROM t WHERE _offset >= ? AND _timestamp < ? LIMIT ?",
            vec![DataType::Utf8, DataType::Int64, stamp, DataType::Int64],
            vec![DataType::Utf8, DataType::Int64],
        ),
        (
            "SELECT $2::double + 1 FROM t WHERE _payload->>'n' = $1 AND _partition = $4",
            vec![
                DataType::Utf8,
                DataType::Float64,
                DataType::Utf8,
                DataType::Int32,
            ],
            vec![DataType::Float64],
        ),
        (
            "SELECT _key FROM t WHERE _payload -> 'n' = ? AND _key = ?",
            vec![DataType::Utf8, DataType::Binary],
            vec![DataType::Binary],
        ),
        (
            // The path must be text before anything else can be told.
            "SELECT json_get_int(_payload, ?) FROM t WHERE _payload -> ? = ? AND _offset = ?",
            vec![DataType::Utf8; 4],
            vec![DataType::Int64],
        ),
        ("SELECT abs(?)", vec![DataType::Utf8], vec![]),
    ] {
        let prepared = serving.prepare(sql).await;
        let types = |schema: &Schema| -> Vec<DataType> {
            assert!(
                schema.fields().iter().all(|field| field.is_nullable()),
                "{sql}"
            );
            let fields = schema.fields().iter();
            fields.map(|field| field.data_type().clone()).collect()
        };
        assert_eq!(
            types(prepared.parameter_schema().unwrap()),
            parameters,
            "{sql}"
        );
        if !results.is_empty() {
            assert_eq!(types(prepared.dataset_schema().unwrap()), results, "{sql}");
        }
    }
    let path = "SELECT _offset FROM t WHERE json_get_int(_payload, ?) = ? AND _payload ->> ? = ?";
    let columns = [text(&["n"]), int([Some(6)]), text(&["n"]), text(&["6"])];
    assert_eq!(serving.answer(path, &columns).await, ["6"]);
}

#[tokio::test]
async fn pub_24_a_text_is_a_value_and_never_sql() {
    let mut serving = ten_records().await;
    let evil = ["5' OR '1'='1", "'; DROP TABLE t; --", "$1", "?"];
    for value in evil {
        let rows = serving
            .answer(
                "SELECT _offset FROM t WHERE _payload->>'n' = ?",
                &[text(&[value])],
            )
            .await;
        assert!(rows.is_empty(), "{value}: {rows:?}");
        assert_eq!(
            serving.answer("SELECT ? || '!'", &[text(&[value])]).await,
            [format!("{value}!")]
        );
    }
    // Compared with a number it may be refused, but it never finds a row.
    let mut prepared = serving
        .prepare("SELECT _offset FROM t WHERE _offset = ?")
        .await;
    prepared
        .set_parameters(values(&[text(&[evil[0]])]))
        .unwrap();
    if let Ok(info) = prepared.execute().await
        && let Ok(rows) = serving
            .client
            .do_get(info.endpoint[0].ticket.clone().unwrap())
            .await
    {
        let found = rows
            .try_collect::<Vec<RecordBatch>>()
            .await
            .unwrap_or_default();
        assert!(rows_of(&found).is_empty());
    }
    let null = "SELECT count(*) FROM t WHERE _offset = ?";
    assert_eq!(
        serving.answer(null, &[Arc::new(NullArray::new(1))]).await,
        ["0"]
    );
    let absent = "SELECT count(*) FROM t WHERE ? IS NULL AND _offset < ?";
    assert_eq!(
        serving.answer(absent, &[int([None]), int([Some(4)])]).await,
        ["4"]
    );
}

#[tokio::test]
async fn pub_24_a_wrong_number_of_values_is_refused_and_says_how_many() {
    let mut serving = ten_records().await;
    let sql = "SELECT ?, _offset FROM t WHERE _offset > ?";
    for columns in [
        vec![int([Some(1)])],
        vec![int([Some(1)]), int([Some(1)]), int([Some(1)])],
    ] {
        let handle = serving.handle(sql).await;
        let status = serving.bind(handle, &columns).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        let said = format!(
            "takes 2 values for its parameters, {} were bound",
            columns.len()
        );
        assert!(status.message().contains(&said), "{status}");
    }
    let mut unbound = serving.prepare(sql).await;
    let error = unbound.execute().await.unwrap_err().to_string();
    assert!(
        error.contains("takes 2 values for its parameters, 0 were bound"),
        "{error}"
    );
    let error = serving.refusal("SELECT 1", &[int([Some(1)])]).await;
    assert!(error.contains("takes 0 values"), "{error}");
    let large = "x".repeat((1 << 20) + 1);
    let error = serving.refusal("SELECT ?", &[text(&[&large])]).await;
    assert!(error.contains("the limit is 1048576"), "{error}");
}

#[tokio::test]
async fn pub_24_a_second_bind_replaces_the_first_and_handles_have_no_server_behind_them() {
    let mut serving = ten_records().await;
    let sql = "SELECT _offset FROM t WHERE _offset >= ? AND _offset < ? ORDER BY 1";
    let mut prepared = serving.prepare(sql).await;
    let bounds = |from, to| [int([Some(from)]), int([Some(to)])];
    for _ in 0..2 {
        assert_eq!(
            serving.bound(&mut prepared, &bounds(2, 4)).await,
            ["2", "3"]
        );
        assert_eq!(
            serving.bound(&mut prepared, &bounds(8, 20)).await,
            ["8", "9"]
        );
    }
    let handle = serving.handle(sql).await;
    let first = serving.bind(handle.clone(), &bounds(0, 2)).await.unwrap();
    let second = serving.bind(first.clone(), &bounds(6, 7)).await.unwrap();
    for (handle, expected) in [(second, vec!["6"]), (first, vec!["0", "1"])] {
        let command = CommandPreparedStatementQuery {
            prepared_statement_handle: handle,
        };
        assert_eq!(rows_of(&serving.same_schemas(&command).await), expected);
    }
    let mut other = super::flight::serving_over(&serving.fixture).await;
    let third = serving.bind(handle, &bounds(9, 10)).await.unwrap();
    let command = CommandPreparedStatementQuery {
        prepared_statement_handle: third,
    };
    let descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
    let info = other
        .client
        .inner_mut()
        .get_flight_info(descriptor)
        .await
        .unwrap();
    let mut rows = other
        .client
        .do_get(info.into_inner().endpoint[0].ticket.clone().unwrap())
        .await
        .unwrap();
    let batch = rows.try_next().await.unwrap().unwrap();
    assert_eq!(rows_of(&[batch]), ["9"]);
}

#[tokio::test]
async fn pub_24_each_row_of_values_is_a_run_over_one_snapshot() {
    let mut serving = ten_records().await;
    let sql = "SELECT ? AS tag, _offset FROM t WHERE _offset = ?";
    let tags: ArrayRef = Arc::new(StringArray::from(vec![Some("b"), None, Some("a")]));
    let columns = [tags, int([Some(7), Some(1), Some(3)])];
    assert_eq!(serving.answer(sql, &columns).await, ["b|7", "|1", "a|3"]);
    assert_eq!(serving.fixture.engine.counters().started, 1);
    let none = [text(&[]), int([])];
    assert!(serving.answer(sql, &none).await.is_empty());
}

/// What programs mean by "always" and "never" ended queries, since nanoseconds end in 2262.
#[tokio::test]
async fn moments_beyond_all_stamps_are_later_or_earlier_than_every_one() {
    let mut serving = ten_records().await;
    let micros = |value: i64| -> ArrayRef {
        Arc::new(arrow::array::TimestampMicrosecondArray::from(vec![value]).with_timezone("UTC"))
    };
    let days = |value: i32| -> ArrayRef { Arc::new(arrow::array::Date32Array::from(vec![value])) };
    let (year_1, year_9999) = (
        micros(-62_135_596_800_000_000),
        micros(253_402_300_799_999_999),
    );
    let count = |condition: &str| format!("SELECT count(*) FROM t WHERE {condition}");
    for (condition, value, expected) in [
        ("_timestamp < ?", year_9999.clone(), "10"),
        ("_timestamp >= ?", year_9999.clone(), "0"),
        ("? > _timestamp", year_9999.clone(), "10"),
        ("_timestamp > ?", year_1.clone(), "10"),
        ("_timestamp = ?", year_1.clone(), "0"),
        ("_timestamp <> ?", year_1.clone(), "10"),
        ("_timestamp < ?", days(2_932_896), "10"),
        ("_timestamp > ?", days(-719_162), "10"),
        ("_timestamp < ?", micros(0), "0"),
    ] {
        let rows = serving.answer(&count(condition), &[value]).await;
        assert_eq!(rows, [expected], "{condition}");
    }
    let between = count("_timestamp BETWEEN ? AND ?");
    let rows = serving.answer(&between, &[year_1, year_9999]).await;
    assert_eq!(rows, ["10"]);
}

/// Text was cast to the few digits that the bound decimal happened to have: it failed, or was rounded until it was equal.
#[tokio::test]
async fn text_is_compared_with_a_decimal_in_all_its_digits() {
    let mut serving = serving().await;
    serving.fixture.create("t", 1, 1 << 20).await;
    for x in ["1.5", "1.54", "1500000", "none", "-0.001"] {
        let payload = format!(r#"{{"x":"{x}"}}"#);
        let frame = Frame::record(1, b"", payload.as_bytes());
        serving.fixture.append("t", 0, &[frame]).await;
    }
    let decimal = |value: i128, precision: u8, scale: i8| -> ArrayRef {
        let array = arrow::array::Decimal128Array::from(vec![value]);
        Arc::new(array.with_precision_and_scale(precision, scale).unwrap())
    };
    for (condition, value, expected) in [
        ("_payload->>'x' = ?", decimal(15, 2, 1), vec!["1.5"]),
        (
            "_payload->>'x' > ?",
            decimal(15, 2, 1),
            vec!["1.54", "1500000"],
        ),
        ("? > _payload->>'x'", decimal(0, 1, 0), vec!["-0.001"]),
    ] {
        let sql = format!("SELECT _payload->>'x' FROM t WHERE {condition} ORDER BY _offset");
        assert_eq!(
            serving.answer(&sql, &[value]).await,
            expected,
            "{condition}"
        );
    }
}
