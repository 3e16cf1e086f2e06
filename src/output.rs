//! The one mechanism behind every `--format`: rows are an `arrow::RecordBatch`, printed by Arrow's own writers.
//!
//! * `table`: an aligned table. A long result is printed in tables of [`TABLE_ROWS`] rows, so that memory stays bounded.
//! * `json`: one object a line; NULL is `null`.
//! * `csv`: a header line, then a line a row.
//! * `arrow`: an Arrow IPC stream, exact in every type (for `sql` only).
//!
//! A table cuts a cell after [`cells::CELL_CHARS`] characters and says so; the other formats give all of it.
//!
//! In the first three a binary value is shown as text where it is UTF-8, and as `\x` and hex digits where it is not. A table
//! escapes control characters; CSV shows nested values as one text.

use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use clap::ValueEnum;

mod cells;

use cells::Shown;

/// Rows of one printed table.
const TABLE_ROWS: usize = 10_000;

/// How a listing is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// An aligned table.
    #[default]
    Table,
    /// One JSON object a line.
    Json,
    /// A header line, then a line a row.
    Csv,
}

/// How the rows of a query are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SqlFormat {
    /// An aligned table.
    #[default]
    Table,
    /// One JSON object a line.
    Json,
    /// A header line, then a line a row.
    Csv,
    /// An Arrow IPC stream: exact, for other programs.
    Arrow,
}

impl From<Format> for SqlFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Table => Self::Table,
            Format::Json => Self::Json,
            Format::Csv => Self::Csv,
        }
    }
}

/// Why rows could not be printed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrintError {
    #[error("cannot write the output")]
    Write(#[from] io::Error),
    #[error("cannot format the rows")]
    Format(#[source] ArrowError),
}

impl PrintError {
    /// The reader of our output has gone: no error of ours.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Write(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Format(_) => false,
        }
    }
}

impl From<ArrowError> for PrintError {
    fn from(error: ArrowError) -> Self {
        match error {
            ArrowError::IoError(_, source) => Self::Write(source),
            other => Self::Format(other),
        }
    }
}

/// Prints batches of one schema as they come.
pub(crate) struct Printer<W: Write> {
    kind: Kind<W>,
    shown: Shown,
    /// Of what is printed.
    schema: SchemaRef,
    row_count: u64,
}

enum Kind<W: Write> {
    Table {
        out: W,
        waiting: Vec<RecordBatch>,
        waiting_rows: usize,
        printed: bool,
    },
    Json(arrow::json::Writer<W, arrow::json::writer::LineDelimited>),
    Csv {
        writer: Box<arrow::csv::Writer<W>>,
        printed: bool,
    },
    Arrow(arrow::ipc::writer::StreamWriter<W>),
}

impl<W: Write> Printer<W> {
    pub(crate) fn new(out: W, format: SqlFormat, schema: &SchemaRef) -> Result<Self, PrintError> {
        let shown = Shown::of(format);
        let schema_shown = shown.schema(schema);
        let kind = match format {
            SqlFormat::Table => Kind::Table {
                out,
                waiting: Vec::new(),
                waiting_rows: 0,
                printed: false,
            },
            SqlFormat::Json => Kind::Json(
                arrow::json::WriterBuilder::new()
                    .with_explicit_nulls(true)
                    .build(out),
            ),
            SqlFormat::Csv => Kind::Csv {
                writer: Box::new(arrow::csv::Writer::new(out)),
                printed: false,
            },
            SqlFormat::Arrow => {
                Kind::Arrow(arrow::ipc::writer::StreamWriter::try_new(out, schema)?)
            }
        };
        Ok(Self {
            kind,
            shown,
            schema: schema_shown,
            row_count: 0,
        })
    }

    pub(crate) fn push(&mut self, batch: &RecordBatch) -> Result<(), PrintError> {
        self.row_count += batch.num_rows() as u64;
        match &mut self.kind {
            Kind::Arrow(writer) => writer.write(batch)?,
            Kind::Json(writer) => writer.write(&self.shown.batch(&self.schema, batch)?)?,
            Kind::Csv { writer, printed } => {
                writer.write(&self.shown.batch(&self.schema, batch)?)?;
                *printed = true;
            }
            Kind::Table {
                waiting,
                waiting_rows,
                ..
            } => {
                *waiting_rows += batch.num_rows();
                waiting.push(self.shown.batch(&self.schema, batch)?);
                if *waiting_rows >= TABLE_ROWS {
                    self.print_table()?;
                }
            }
        }
        Ok(())
    }

    fn print_table(&mut self) -> Result<(), PrintError> {
        if let Kind::Table {
            out,
            waiting,
            waiting_rows,
            printed,
        } = &mut self.kind
        {
            let batches = std::mem::take(waiting);
            *waiting_rows = 0;
            *printed = true;
            let table = arrow::util::pretty::pretty_format_batches_with_schema(
                Arc::clone(&self.schema),
                &batches,
            )?;
            writeln!(out, "{table}")?;
        }
        Ok(())
    }

    /// Writes what is left and returns the rows printed. Without rows, a table and CSV still show their columns.
    pub(crate) fn finish(mut self) -> Result<u64, PrintError> {
        if matches!(&self.kind, Kind::Table { waiting, printed, .. } if !waiting.is_empty() || !printed)
        {
            self.print_table()?;
        }
        match self.kind {
            Kind::Table { mut out, .. } => out.flush()?,
            Kind::Json(mut writer) => {
                writer.finish()?;
                writer.into_inner().flush()?;
            }
            Kind::Csv {
                mut writer,
                printed,
            } => {
                if !printed {
                    writer.write(&RecordBatch::new_empty(self.schema))?;
                }
                writer.into_inner().flush()?;
            }
            Kind::Arrow(mut writer) => {
                writer.finish()?;
                writer.get_mut().flush()?;
            }
        }
        Ok(self.row_count)
    }
}

/// Prints one listing to stdout.
pub(crate) fn print_listing(format: Format, columns: Vec<(&str, ArrayRef)>) -> anyhow::Result<()> {
    let batch = RecordBatch::try_from_iter(columns)?;
    let out = io::BufWriter::new(io::stdout().lock());
    let print = || -> Result<(), PrintError> {
        let mut printer = Printer::new(out, format.into(), &batch.schema())?;
        printer.push(&batch)?;
        printer.finish()?;
        Ok(())
    };
    match print() {
        Err(error) if error.is_broken_pipe() => Ok(()),
        result => Ok(result?),
    }
}

/// Prints text to stdout; a reader that has gone is no error.
pub(crate) fn say(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let line_feed = if text.ends_with('\n') { "" } else { "\n" };
    match write!(out, "{text}{line_feed}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result.map_err(PrintError::Write)?),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, BinaryArray, Int64Array, ListArray, StructArray};
    use arrow::datatypes::Field;

    use super::*;

    fn batch() -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![
            Some(&b"a,\"b"[..]),
            Some(b"\xff\x00"),
        ]));
        RecordBatch::try_from_iter([("n", numbers), ("p", bytes)]).unwrap()
    }

    fn print(format: SqlFormat, batches: &[RecordBatch]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, format, &batch().schema()).unwrap();
        for batch in batches {
            printer.push(batch).unwrap();
        }
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        assert_eq!(printer.finish().unwrap(), rows as u64);
        out
    }

    fn text(format: SqlFormat, batches: &[RecordBatch]) -> String {
        String::from_utf8(print(format, batches)).unwrap()
    }

    #[test]
    fn json_is_an_object_a_line_with_explicit_nulls_and_text_or_hex_for_bytes() {
        let expected = "{\"n\":1,\"p\":\"a,\\\"b\"}\n{\"n\":null,\"p\":\"\\\\xff00\"}\n";
        assert_eq!(text(SqlFormat::Json, &[batch()]), expected);
        assert_eq!(text(SqlFormat::Json, &[]), "");
    }

    #[test]
    fn csv_has_one_header_and_quotes_what_needs_it() {
        assert_eq!(
            text(SqlFormat::Csv, &[batch(), batch()]),
            "n,p\n1,\"a,\"\"b\"\n,\\xff00\n1,\"a,\"\"b\"\n,\\xff00\n"
        );
        assert_eq!(text(SqlFormat::Csv, &[]), "n,p\n");
    }

    #[test]
    fn a_table_shows_its_columns_also_without_rows() {
        assert!(text(SqlFormat::Table, &[]).contains("| n | p |"));
        assert!(text(SqlFormat::Table, &[batch()]).contains("a,\"b"));
    }

    #[test]
    fn a_long_table_is_printed_in_parts_and_loses_no_row() {
        let rows = i64::try_from(TABLE_ROWS).unwrap() * 2 + 1;
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        let long = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, SqlFormat::Table, &long.schema()).unwrap();
        for start in (0..long.num_rows()).step_by(500) {
            printer
                .push(&long.slice(start, 500.min(long.num_rows() - start)))
                .unwrap();
        }
        printer.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text.lines()
                .filter(|line| line.starts_with("| ") && !line.contains('n'))
                .count(),
            long.num_rows()
        );
        assert_eq!(text.lines().filter(|line| line.contains('n')).count(), 3);
    }

    #[test]
    fn a_table_does_not_let_a_payload_steer_the_terminal() {
        let evil: ArrayRef = Arc::new(BinaryArray::from(vec![&b"\x1b[2Jgone\r\n"[..]]));
        let batch = RecordBatch::try_from_iter([("p", evil)]).unwrap();
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, SqlFormat::Table, &batch.schema()).unwrap();
        printer.push(&batch).unwrap();
        printer.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\\u{1b}[2Jgone\\r\\n"), "{text}");
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn headers_are_text_in_json_and_one_cell_in_csv() {
        let value: ArrayRef = Arc::new(BinaryArray::from(vec![Some(&b"v"[..]), None]));
        let key: ArrayRef = Arc::new(arrow::array::StringArray::from(vec!["k", "l"]));
        let headers = StructArray::try_from(vec![("key", key), ("value", value)]).unwrap();
        let field = Arc::new(Field::new("item", headers.data_type().clone(), true));
        let offsets = arrow::buffer::OffsetBuffer::new(vec![0, 2, 2].into());
        let nulls = arrow::buffer::NullBuffer::from(vec![true, false]);
        let list = ListArray::new(field, offsets, Arc::new(headers), Some(nulls));
        let batch = RecordBatch::try_from_iter([("h", Arc::new(list) as ArrayRef)]).unwrap();
        for (format, expected) in [
            (
                SqlFormat::Json,
                "{\"h\":[{\"key\":\"k\",\"value\":\"v\"},{\"key\":\"l\",\"value\":null}]}\n{\"h\":null}\n",
            ),
            // A lone NULL is `""`: an empty line would be no row at all.
            (
                SqlFormat::Csv,
                "h\n\"[{key: k, value: v}, {key: l, value: }]\"\n\"\"\n",
            ),
        ] {
            let mut out = Vec::new();
            let mut printer = Printer::new(&mut out, format, &batch.schema()).unwrap();
            printer.push(&batch).unwrap();
            printer.finish().unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn arrow_keeps_bytes_as_bytes() {
        let bytes = print(SqlFormat::Arrow, &[batch()]);
        let mut reader = arrow::ipc::reader::StreamReader::try_new(&bytes[..], None).unwrap();
        assert_eq!(reader.next().unwrap().unwrap(), batch());
    }
}
