//! Why a schema is refused.

/// Why the text of a schema is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The text is longer than a topic's settings may be.
    #[error("the schema has {found_bytes} bytes, the limit is {limit_bytes}")]
    TooLong {
        /// Its length.
        found_bytes: usize,
        /// The longest there may be.
        limit_bytes: usize,
    },
    /// The text is not JSON, or has other fields than a schema.
    #[error("the schema cannot be read: {reason}")]
    Unreadable {
        /// What is wrong, with line and column.
        reason: String,
    },
    /// A field has a value that makes no sense.
    #[error("the schema's {field}: {reason}")]
    Field {
        /// Which one, for example `columns[2].type`.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl SchemaError {
    pub(crate) fn field(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Field {
            field: field.into(),
            reason: reason.into(),
        }
    }
}
