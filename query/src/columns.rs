//! The columns of a topic's table: the server's own ones, those that the topic's schema declares, and `_error`.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use basalt_columnar::{ColdFile, SQL_COLUMN_COUNT};
use basalt_schema::{Format, TopicSchema};

use crate::snapshot::topic_schema;

/// The columns of one topic's table, for the whole of a query.
#[derive(Debug, Clone)]
pub(crate) struct TopicColumns {
    schema: SchemaRef,
    /// What the columns behind the server's own are computed by.
    typed: Option<Arc<TopicSchema>>,
}

/// A stored column in the layout in which it is read: texts as views of what was decompressed, which are not copied.
pub(crate) fn scanned(field: &Field) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::Utf8 => DataType::Utf8View,
        other => other.clone(),
    };
    Arc::new(field.clone().with_data_type(data_type))
}

impl TopicColumns {
    pub(crate) fn new(typed: Option<Arc<TopicSchema>>) -> Self {
        let schema = match &typed {
            None => topic_schema(),
            Some(typed) => {
                let declared = typed.fields().into_iter().map(|field| scanned(&field));
                let fields = topic_schema()
                    .fields()
                    .iter()
                    .cloned()
                    .chain(declared)
                    .collect::<Vec<_>>();
                Arc::new(Schema::new(fields))
            }
        };
        Self { schema, typed }
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The schema to compute the columns of `projection` by; `None` if they can all be read as they are.
    pub(crate) fn computed_by(&self, projection: &[usize]) -> Option<&Arc<TopicSchema>> {
        let is_declared = |column: &usize| *column >= SQL_COLUMN_COUNT;
        self.typed
            .as_ref()
            .filter(|_| self.has_lines() || projection.iter().any(is_declared))
    }

    /// Whether `file` stores the declared columns as this query would compute them.
    pub(crate) fn are_stored_in(&self, file: &ColdFile) -> bool {
        let (Some(typed), Some(stored)) = (&self.typed, &file.typed) else {
            return false;
        };
        stored.are_of(typed)
    }

    /// Whether a frame may be more rows than one: its lines.
    pub(crate) fn has_lines(&self) -> bool {
        let format = self.typed.as_ref().map(|typed| typed.format());
        format == Some(Format::Ndjson)
    }
}
