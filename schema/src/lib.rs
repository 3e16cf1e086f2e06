//! Schemas of topics: what the columns of a typed topic are, and how payloads become them.
//!
//! Start with [`TopicSchema`], which is read from the text that a topic's settings hold and printed as the same text, and
//! [`Decoder`], which takes one payload after the other and gives Arrow arrays. [`infer`] proposes a schema for payloads
//! that have none.
//!
//! It knows no topic, no frame, no file and no SQL: bytes go in, columns come out.
//!
//! Invariants:
//! - **SCH-1** no payload is an error to the caller: one that does not fit has NULL in every declared column, and
//!   `_error` says why (`decode`).
//! - **SCH-2** a value is what the payload says or the row does not fit: nothing is rounded, wrapped or cut (`convert`).
//! - **SCH-3** what a payload claims of its own lengths is never allocated before it is there, and nesting is bounded
//!   (`json`, `avro`, `protobuf`).
//! - **SCH-4** the columns of a row depend on its payload and the schema alone (`decode`): hot and cold rows are equal.
//! - **SCH-5** a batch of rows is bounded too, by what it holds and not by what it was made of (`decode`).
#![forbid(unsafe_code)]

mod convert;
mod path;
mod types;

mod change;
mod columns;
mod error;
mod topic_schema;

mod builder;
mod decode;
mod lines;
mod tree;
mod value;

mod avro;
mod framing;
mod json;
mod protobuf;

mod infer;

pub use change::Changes;
pub use decode::{DECODING, Decoder};
pub use error::SchemaError;
pub use infer::{Sample, infer};
pub use lines::{line_at, line_count};
pub use path::Path;
pub use topic_schema::{Column, ERROR_COLUMN, Format, MAX_COLUMNS, MAX_TEXT_BYTES, TopicSchema};
pub use types::{ColumnType, StructField, TimeScale};

#[cfg(test)]
mod tests;
