//! Parameters of statements: their types, and the values that are bound to them.
//!
//! - **QRY-9**: a bound value is a value and never SQL: it enters a statement after it was parsed, as a literal of the
//!   type in which it came, and the statement is planned as if it had been written there.
//!
//! What a parameter is compared with, cast to or counts announces its type; any other is announced as text ([`types`]).
//! Each row of values ([`bindings`]) is one run of the statement; all runs see the same snapshot, and their rows come one
//! after the other.

mod bindings;
mod types;

pub(crate) use bindings::{Bindings, BindingsError, nullable};
pub(crate) use types::{inferred, parameter_names, typed_plan};

use std::time::Duration;

use crate::control::QueryId;

/// A statement, what is bound to its parameters, and who asks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query {
    pub(crate) sql: String,
    /// `None` where nothing was bound.
    pub(crate) bindings: Option<Bindings>,
    /// `None` where it was not announced: it gets one when it runs.
    pub(crate) id: Option<QueryId>,
    /// Who sent it.
    pub(crate) client: Option<String>,
    /// How long the client waits for it, where it says so.
    pub(crate) timeout: Option<Duration>,
    /// Records count whatever became of their transaction, or becomes of it.
    pub(crate) sees_uncommitted: bool,
}

impl Query {
    /// `sql` as it is.
    pub(crate) fn plain(sql: &str) -> Self {
        Self {
            sql: sql.to_owned(),
            ..Self::default()
        }
    }
}
