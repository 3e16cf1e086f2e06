//! Rows of stored columns to rows of a table.

use std::sync::Arc;

use arrow::array::{
    Array as _, ArrayRef, AsArray as _, BinaryArray, BinaryBuilder, Int64Array, Int64Builder,
    RecordBatch, RecordBatchOptions, UInt64Array,
};
use arrow::compute::{cast, take};
use arrow::datatypes::{Int64Type, SchemaRef};
use basalt_schema::{Decoder, TopicSchema, line_at, line_count};
use datafusion::common::DataFusionError;
use datafusion::error::Result;

/// Bytes of payloads after which a batch is handed on, however few its rows are.
const BATCH_BYTES: usize = 8 << 20;

/// Where a column of the table comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    /// The stored column at this place.
    Stored(usize),
    /// The offset of the row's line.
    Offset,
    /// The row's line.
    Payload,
    /// 1 for a line.
    RecordCount,
    /// The declared column at this place; behind the last one is `_error`.
    Declared(usize),
}

/// What is made of what.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Of the rows that are made.
    pub(super) schema: SchemaRef,
    /// A column of `schema` each.
    pub(super) outputs: Vec<Output>,
    pub(super) typed: Arc<TopicSchema>,
    /// Places of stored columns. The last two where payloads have lines.
    pub(super) payload: usize,
    pub(super) offset: Option<usize>,
    pub(super) record_count: Option<usize>,
}

/// Makes rows, a batch at a time.
pub(super) struct Deriver {
    plan: Plan,
    decoder: Decoder,
    batch_rows: usize,
    /// What is left to do of the stored rows.
    input: Option<Input>,
}

/// Stored rows, and how far the rows made of them got.
struct Input {
    batch: RecordBatch,
    row: usize,
    /// Of the first row left, when some of its lines are done.
    line: Option<Line>,
}

#[derive(Clone, Copy)]
struct Line {
    position: usize,
    index: u64,
}

impl Deriver {
    pub(super) fn new(plan: Plan, batch_rows: usize) -> Self {
        let wanted = plan.outputs.iter().filter_map(|output| match output {
            Output::Declared(column) => Some(*column),
            _ => None,
        });
        Self {
            decoder: Decoder::new(Arc::clone(&plan.typed), wanted.collect()),
            plan,
            batch_rows: batch_rows.max(1),
            input: None,
        }
    }

    /// Hands over stored rows; those before must be used up.
    pub(super) fn put(&mut self, batch: RecordBatch) {
        self.input = Some(Input {
            batch,
            row: 0,
            line: None,
        });
    }

    /// The next rows; `None` when the stored ones are used up.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Some(mut input) = self.input.take() else {
            return Ok(None);
        };
        if input.row == input.batch.num_rows() {
            return Ok(None);
        }
        let made = match (self.plan.offset, self.plan.record_count) {
            (Some(offset), Some(record_count)) => self.lines(&mut input, offset, record_count),
            _ => self.rows(&mut input),
        };
        self.input = Some(input);
        made.map(Some)
    }

    /// A row for each stored row.
    fn rows(&mut self, input: &mut Input) -> Result<RecordBatch> {
        let payloads = payloads(&input.batch, self.plan.payload)?.clone();
        let start = input.row;
        let mut bytes = 0;
        while input.row < payloads.len()
            && input.row - start < self.batch_rows
            && bytes < BATCH_BYTES
            && !self.decoder.is_full()
        {
            let payload = payloads
                .is_valid(input.row)
                .then(|| payloads.value(input.row));
            bytes += payload.map_or(0, <[u8]>::len);
            self.decoder.push(payload);
            input.row += 1;
        }
        let stored = input.batch.slice(start, input.row - start);
        self.built(stored.num_rows(), |output| match output {
            Output::Stored(at) => Ok(Arc::clone(stored.column(at))),
            _ => Err(misplaced(output)),
        })
    }

    /// A row for each line of stored rows.
    fn lines(&mut self, input: &mut Input, offset: usize, count: usize) -> Result<RecordBatch> {
        let payloads = payloads(&input.batch, self.plan.payload)?.clone();
        let offsets = numbers(&input.batch, offset)?.clone();
        let counts = numbers(&input.batch, count)?.clone();
        // Each line has its frame's key.
        let keys = self.plan.outputs.iter().find_map(|output| match output {
            Output::Stored(at) => input.batch.column(*at).as_binary_opt::<i32>().cloned(),
            _ => None,
        });
        let mut made = LineRows::default();
        while input.row < payloads.len()
            && made.from.len() < self.batch_rows
            && made.bytes < BATCH_BYTES
            && !self.decoder.is_full()
        {
            let row = input.row;
            let payload = payloads.is_valid(row).then(|| payloads.value(row));
            made.key_bytes = keys.as_ref().map_or(0, |keys| keys.value(row).len());
            let records = counts.value(row);
            let base = offsets.value(row);
            let Some(payload) = payload.filter(|_| records > 1) else {
                self.decoder.push(payload);
                made.push(row, base, payload, records);
                input.row += 1;
                continue;
            };
            let wanted = records.unsigned_abs();
            let begun = match input.line {
                Some(line) => line,
                None => {
                    let found = line_count(payload);
                    if found != wanted {
                        self.decoder
                            .push_error(&format!("{found} lines for {wanted} records"));
                        made.push(row, base, Some(payload), records);
                        input.row += 1;
                        continue;
                    }
                    Line {
                        position: 0,
                        index: 0,
                    }
                }
            };
            input.line = self.push_lines(&mut made, row, base, payload, begun, wanted);
            if input.line.is_none() {
                input.row += 1;
            }
        }
        let LineRows {
            from,
            mut offsets,
            mut payloads,
            mut counts,
            ..
        } = made;
        let from = UInt64Array::from(from);
        let stored = &input.batch;
        self.built(from.len(), |output| match output {
            Output::Stored(at) => Ok(take(stored.column(at), &from, None)?),
            Output::Offset => Ok(Arc::new(offsets.finish())),
            Output::Payload => Ok(Arc::new(payloads.finish())),
            Output::RecordCount => Ok(Arc::new(counts.finish())),
            Output::Declared(_) => Err(misplaced(output)),
        })
    }

    /// Makes rows of lines until there are enough or the payload ends; where to go on, if it did not.
    fn push_lines(
        &mut self,
        made: &mut LineRows,
        row: usize,
        base: i64,
        payload: &[u8],
        begun: Line,
        wanted: u64,
    ) -> Option<Line> {
        let Line {
            mut position,
            mut index,
        } = begun;
        while index < wanted {
            let is_full = made.from.len() >= self.batch_rows
                || made.bytes >= BATCH_BYTES
                || self.decoder.is_full();
            if is_full {
                return Some(Line { position, index });
            }
            let (line, next) = line_at(payload, position);
            self.decoder.push(Some(line));
            // The frame's last offset fits 63 bits, or it would not be a row.
            made.push(row, base.saturating_add_unsigned(index), Some(line), 1);
            position = next;
            index += 1;
        }
        None
    }

    fn built(
        &mut self,
        rows: usize,
        mut stored: impl FnMut(Output) -> Result<ArrayRef>,
    ) -> Result<RecordBatch> {
        let mut declared = self.decoder.finish().into_iter();
        let outputs = self.plan.outputs.iter().zip(self.plan.schema.fields());
        let columns = outputs.map(|(output, field)| match output {
            // In the layout in which a file's columns are read.
            Output::Declared(_) => match declared.next() {
                Some(column) => Ok(cast(&column, field.data_type())?),
                None => Err(misplaced(*output)),
            },
            other => stored(*other),
        });
        let columns: Vec<ArrayRef> = columns.collect::<Result<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.plan.schema),
            columns,
            &options,
        )?)
    }
}

/// The server's own columns of rows that are lines.
#[derive(Default)]
struct LineRows {
    /// The stored row of each.
    from: Vec<u64>,
    offsets: Int64Builder,
    payloads: BinaryBuilder,
    counts: Int64Builder,
    /// Of each row that comes.
    key_bytes: usize,
    bytes: usize,
}

impl LineRows {
    fn push(&mut self, row: usize, offset: i64, payload: Option<&[u8]>, count: i64) {
        self.from.push(row as u64);
        self.offsets.append_value(offset);
        self.payloads.append_option(payload);
        self.counts.append_value(count);
        self.bytes += self.key_bytes + payload.map_or(0, <[u8]>::len);
    }
}

fn payloads(batch: &RecordBatch, at: usize) -> Result<&BinaryArray> {
    let column = batch.column(at).as_binary_opt::<i32>();
    column.ok_or_else(|| misplaced(Output::Stored(at)))
}

fn numbers(batch: &RecordBatch, at: usize) -> Result<&Int64Array> {
    let column = batch.column(at).as_primitive_opt::<Int64Type>();
    column.ok_or_else(|| misplaced(Output::Stored(at)))
}

fn misplaced(output: Output) -> DataFusionError {
    DataFusionError::Internal(format!("{output:?} is not where it should be"))
}
