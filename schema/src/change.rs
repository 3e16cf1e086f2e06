//! What a new schema changes for records that are there already.

use crate::topic_schema::TopicSchema;

/// What differs between a topic's schema and the one before it.
///
/// Nothing is ever rewritten: records of any age are read by the present schema. A column that is new is there for them too; one
/// that changed is read anew, and a record that does not fit it has NULL columns and says so in `_error`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Payloads are read in another way: another format, Avro schema, message type or header.
    pub encoding: bool,
    /// Columns that were not there.
    pub added: Vec<String>,
    /// Columns that are there no more.
    pub removed: Vec<String>,
    /// Columns of another type or path, and what they were and are.
    pub changed: Vec<(String, String)>,
}

impl Changes {
    /// Whether every column that was there is there still, with the values that it had. A record that does not fit an added column
    /// loses them nevertheless.
    #[must_use]
    pub fn is_additive(&self) -> bool {
        !self.encoding && self.removed.is_empty() && self.changed.is_empty()
    }
}

impl TopicSchema {
    /// What this schema changes where `old` stood.
    #[must_use]
    pub fn changes_since(&self, old: &TopicSchema) -> Changes {
        let named = |schema: &TopicSchema, name: &str| {
            let mut columns = schema.columns().iter();
            columns.position(|column| column.name == name)
        };
        let mut changes = Changes {
            encoding: !self.reads_alike(old),
            ..Changes::default()
        };
        for column in self.columns() {
            let Some(at) = named(old, &column.name) else {
                changes.added.push(column.name.clone());
                continue;
            };
            let before = &old.columns()[at];
            if before != column {
                let place = |path: &crate::Path| match path.to_string() {
                    root if root.is_empty() => "the payload".to_owned(),
                    path => path,
                };
                changes.changed.push((
                    column.name.clone(),
                    format!(
                        "{} at {} became {} at {}",
                        before.data_type,
                        place(&before.path),
                        column.data_type,
                        place(&column.path)
                    ),
                ));
            }
        }
        let gone = old.columns().iter().map(|column| &column.name);
        changes.removed = gone
            .filter(|name| named(self, name).is_none())
            .cloned()
            .collect();
        changes
    }
}
