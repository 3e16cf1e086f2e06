//! Statements that make, change and delete topics.
//!
//! `CREATE TABLE`, `ALTER TABLE ... ADD COLUMN`, `ALTER TABLE ... DROP COLUMN` and `DROP TABLE` are read here ([`statement`])
//! and carried out by whoever serves topics, through [`TopicChanges`]: this crate does not change a log. They run when their
//! rows are asked for, of which there are none, and not when they are described.

mod statement;
mod types;

use std::sync::Arc;

use basalt_proto::{ErrorKind, TopicName};
use basalt_schema::{Column, TopicSchema};
use futures::future::BoxFuture;

use crate::QueryError;

pub(crate) use statement::read;

/// Makes of the text of a topic's schema, if it has one, that of the next, if it is to have one, or says why not.
pub type SchemaEdit = Box<dyn FnOnce(Option<&str>) -> Result<Option<String>, String> + Send>;

/// Carries out what statements change. Each change is durable when its future ends, and is carried out or not as a whole.
pub trait TopicChanges: Send + Sync {
    /// Makes a topic with these settings. Without a number of partitions it has as many as one made on first use.
    fn create(
        &self,
        topic: TopicName,
        partitions: Option<u32>,
        settings: Vec<(String, String)>,
    ) -> BoxFuture<'static, Result<(), TopicChangeError>>;

    /// Changes a topic's schema.
    fn alter_schema(
        &self,
        topic: TopicName,
        edit: SchemaEdit,
    ) -> BoxFuture<'static, Result<(), TopicChangeError>>;

    /// Deletes a topic with its records.
    fn delete(&self, topic: TopicName) -> BoxFuture<'static, Result<(), TopicChangeError>>;
}

/// Why a topic was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TopicChangeError {
    /// What whoever asked should do.
    pub kind: ErrorKind,
    /// What was refused, and why.
    pub message: String,
}

impl TopicChangeError {
    fn invalid(message: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::InvalidRequest,
            message: message.into(),
        }
    }
}

/// What a statement changes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    Create {
        topic: TopicName,
        partitions: Option<u32>,
        settings: Vec<(String, String)>,
        if_not_exists: bool,
    },
    Alter {
        topic: TopicName,
        if_exists: bool,
        edits: Vec<ColumnEdit>,
    },
    Drop {
        topics: Vec<TopicName>,
        if_exists: bool,
    },
}

/// One change of a topic's columns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ColumnEdit {
    Add { column: Column, if_not_exists: bool },
    Drop { name: String, if_exists: bool },
}

impl Change {
    /// Carries it out.
    pub(crate) async fn run(self, topics: &Arc<dyn TopicChanges>) -> Result<(), QueryError> {
        let changed = match self {
            Self::Create {
                topic,
                partitions,
                settings,
                if_not_exists,
            } => unless(
                if_not_exists,
                ErrorKind::TopicExists,
                topics.create(topic, partitions, settings).await,
            ),
            Self::Alter {
                topic,
                if_exists,
                edits,
            } => {
                let edit = Box::new(move |text: Option<&str>| edited(text, edits));
                unless(
                    if_exists,
                    ErrorKind::UnknownTopic,
                    topics.alter_schema(topic, edit).await,
                )
            }
            Self::Drop {
                topics: names,
                if_exists,
            } => {
                for topic in names {
                    let deleted = topics.delete(topic).await;
                    unless(if_exists, ErrorKind::UnknownTopic, deleted)?;
                }
                Ok(())
            }
        };
        Ok(changed?)
    }
}

/// `result`, where an error of this kind is none if it is `forgiven`.
fn unless(
    forgiven: bool,
    kind: ErrorKind,
    result: Result<(), TopicChangeError>,
) -> Result<(), TopicChangeError> {
    match result {
        Err(error) if forgiven && error.kind == kind => Ok(()),
        other => other,
    }
}

/// The text of a schema with some columns changed; one without a schema becomes one of JSON.
fn edited(text: Option<&str>, edits: Vec<ColumnEdit>) -> Result<Option<String>, String> {
    let words = |error: basalt_schema::SchemaError| error.to_string();
    let schema = match text {
        Some(text) => TopicSchema::parse(text).map_err(words)?,
        None => TopicSchema::json(&[]).map_err(words)?,
    };
    let mut columns = schema.columns().to_vec();
    for edit in edits {
        match edit {
            ColumnEdit::Add {
                column,
                if_not_exists,
            } => {
                let known = columns.iter().any(|known| known.name == column.name);
                if !(known && if_not_exists) {
                    columns.push(column);
                }
            }
            ColumnEdit::Drop { name, if_exists } => {
                let before = columns.len();
                columns.retain(|column| column.name != name);
                if columns.len() == before && !if_exists {
                    return Err(format!("there is no declared column {name:?}"));
                }
            }
        }
    }
    if text.is_none() && columns.is_empty() {
        return Ok(None);
    }
    let changed = schema.with_columns(&columns).map_err(words)?;
    Ok(Some(changed.text()))
}
