//! SQL over hot and cold records, served as Arrow Flight SQL.
//!
//! Start with [`QueryEngine`]: it takes a [`basalt_columnar::TieredLog`] and answers one statement at a time as a
//! [`QueryStream`] of Arrow batches, or serves them all as a tonic service, [`QueryEngine::flight_service`].
//!
//! Every topic is a table of schema `public`, named exactly as the topic, with the columns `_partition INT`,
//! `_offset BIGINT`, `_timestamp TIMESTAMP(ns, UTC)`, `_key BINARY`, `_headers LIST<STRUCT<key, value>>`,
//! `_payload BINARY` and `_record_count BIGINT`; schema `sys` has the server's own tables `topics`, `partitions`,
//! `segments`, `files`, `groups`, `queries`, `cooling` and `settings`. JSON functions and operators take `_payload` as it is. A topic with a
//! schema has its declared columns and `_error` behind those. Statements change topics only through [`TopicChanges`].
//!
//! This crate knows no protocol but Flight SQL, no file names and no network but what tonic hands it: where records lie,
//! and where hot and cold meet, is the tiered log's to say.
//!
//! Invariants, each named where it is kept and tested:
//! - **QRY-1** JSON functions give NULL where there is no such JSON, never an error (`json`).
//! - **QRY-2** announced schemas are streamed schemas, in plain types (`edge`).
//! - **QRY-3** one snapshot a topic a query (`snapshot`).
//! - **QRY-4** pruning leaves out only what cannot match (`prune`).
//! - **QRY-5** rows from the log start on, the same hot and cold (`topic_table`).
//! - **QRY-6** one odd record does not fail a text predicate for all others (`text_rewrite`).
//! - **QRY-7** a query that ended holds nothing; a panic is its own error (`stream`).
//! - **QRY-8** what multiplies rows can be ended between any two batches (`yielding`).
//! - **QRY-9** a value bound to a parameter is a value, never SQL (`parameters`).
//! - **QRY-10** JSON functions give over columns what they give over the produced bytes (`cold_scan`).
//! - **QRY-11** whatever a payload is, it is a row of a typed topic, or one a line (`typed`).
//! - **QRY-12** no number that leaves the engine went round (`arithmetic`).
//! - **QRY-13** so many queries run, so many wait, others are refused (`control`).
//! - **QRY-14** no call of a function fills the memory (`sized`).
//! - **QRY-15**, **QRY-16** a cut is read again byte for byte, or refused (`as_of`).
//!
//! ```no_run
//! # async fn example(log: std::sync::Arc<basalt_columnar::TieredLog>) -> Result<(), basalt_query::QueryError> {
//! use basalt_query::{QueryConfig, QueryEngine};
//! use futures::StreamExt;
//!
//! let engine = QueryEngine::new(log, QueryConfig::default())?;
//! let mut rows = engine.query("SELECT count(*) FROM flights WHERE _payload->>'carrier' = 'UA'").await?;
//! while let Some(batch) = rows.next().await {
//!     println!("{:?}", batch?);
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod config;
mod counters;
mod error;

mod control;
mod ddl;
mod engine;
mod parameters;
mod parse;
mod plan_walk;
mod planner;
mod session;
mod spill;
mod stream;

mod as_of;
mod catalog;
mod columns;
mod inferred;
mod snapshot;
mod sys_tables;
mod topic_table;
mod yielding;

mod cold_scan;
mod hot_scan;
mod prune;
mod typed;

mod arithmetic;
mod comparison;
mod edge;
mod json;
mod sized;
mod text_rewrite;

mod flight;

pub use as_of::SnapshotError;
pub use config::{QueryConfig, Setting};
pub use counters::QueryCounters;
pub use ddl::{SchemaEdit, TopicChangeError, TopicChanges};
pub use engine::QueryEngine;
pub use error::QueryError;
pub use flight::{BearerToken, FlightSql};
pub use stream::QueryStream;

#[cfg(test)]
mod tests;
