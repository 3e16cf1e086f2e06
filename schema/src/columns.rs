//! The columns of a schema, and how they are proposed for fields of payloads.

use crate::path::Path;
use crate::types::{ColumnType, check_name};

/// One declared column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub data_type: ColumnType,
    /// Where in the payload.
    pub path: Path,
}

/// What a column may be called: not as the server's own ones.
pub(crate) fn check_column_name(name: &str) -> Result<(), String> {
    check_name(name)?;
    if name.starts_with('_') {
        return Err(format!(
            "`{name}`: names that begin with _ are the server's own; take another one, and `{name}` as its path"
        ));
    }
    match is_shredded_name(name) {
        true => Err(format!(
            "`{name}`: names that begin with `payload.` are those of shredded payloads in cold files"
        )),
        false => Ok(()),
    }
}

/// Whether a shredded column may have this name, for readers that do not tell the cases apart.
fn is_shredded_name(name: &str) -> bool {
    name.to_lowercase().starts_with("payload.")
}

/// Whether two columns, or two fields of a struct, cannot be told apart by every reader of Parquet.
pub(crate) fn same_name(a: &str, b: &str) -> bool {
    a.to_lowercase() == b.to_lowercase()
}

/// Columns for the fields of payloads, each under a name that it can have.
#[derive(Debug, Default)]
pub(crate) struct Proposal {
    columns: Vec<Column>,
    /// The first field without a type.
    untyped: Option<String>,
}

impl Proposal {
    /// Adds a column for a field, whose type may be none of ours.
    pub(crate) fn push(&mut self, field: &str, data_type: Option<ColumnType>) {
        let Some(data_type) = data_type else {
            self.untyped.get_or_insert_with(|| field.to_owned());
            return;
        };
        let name = self.free_name(field);
        self.columns.push(Column {
            name,
            data_type,
            path: Path::key(field),
        });
    }

    fn free_name(&self, field: &str) -> String {
        let is_free = |name: &str| {
            check_column_name(name).is_ok()
                && !self
                    .columns
                    .iter()
                    .any(|column| same_name(&column.name, name))
        };
        if is_free(field) {
            return field.to_owned();
        }
        let plain: String = field
            .trim_start_matches('_')
            .chars()
            .filter(|c| !c.is_control())
            .take(48)
            .collect();
        let plain = match plain.is_empty() || is_shredded_name(&plain) {
            true => format!("field_{plain}"),
            false => plain,
        };
        let numbered = (2..).map(|number: u32| format!("{plain}_{number}"));
        std::iter::once(plain.clone())
            .chain(numbered)
            .find(|name| is_free(name))
            .unwrap_or(plain)
    }

    /// The columns.
    ///
    /// # Errors
    /// The first field without a type, in words.
    pub(crate) fn finish(self) -> Result<Vec<Column>, String> {
        match self.untyped {
            Some(field) => Err(format!(
                "field `{field}` has no type that a column can have: name the columns"
            )),
            None => Ok(self.columns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_gets_a_name_of_its_own() {
        let mut proposal = Proposal::default();
        for field in [
            "id",
            "_id",
            "ID",
            "_",
            "payload.x",
            "",
            "_payload",
            "PayLoad.y",
            "_Payload.z",
        ] {
            proposal.push(field, Some(ColumnType::Int64));
        }
        let columns = proposal.finish().unwrap();
        let names: Vec<_> = columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "id",
                "id_2",
                "ID_3",
                "field_",
                "field_payload.x",
                "field__2",
                "payload",
                "field_PayLoad.y",
                "field_Payload.z"
            ]
        );
        assert!(names.iter().all(|name| check_column_name(name).is_ok()));
        assert_eq!(columns[1].path.steps(), ["_id"]);
    }
}
