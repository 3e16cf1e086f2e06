//! Single fields of shredded payloads, for readers that do not need the others.

use arrow::array::{ArrayRef, StringArray, StringBuilder};

use super::render::Rendered;
use super::template::Part;
use super::{ShredError, Shredding};

impl Shredding {
    /// How many templates the file has: their numbers are below this.
    #[must_use]
    pub const fn template_count(&self) -> usize {
        self.templates.len()
    }

    /// Whether a payload of a template has the field of a column, `null` or not.
    #[must_use]
    pub fn has_column(&self, template: usize, column: usize) -> bool {
        let column = u32::try_from(column).ok();
        self.templates
            .get(template)
            .is_some_and(|template| template.columns().any(|has| Some(has) == column))
    }

    /// A payload of a template, with the number of its column in the place of each value: whatever a path finds in it says where the
    /// path leads in all payloads of this template. `None` if there is no such template.
    #[must_use]
    pub fn outline(&self, template: usize) -> Option<String> {
        let template = self.templates.get(template)?;
        let parts = template.0.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Column(column) => column.to_string(),
        });
        Some(parts.collect())
    }

    /// The values of a column as the JSON text that stands for them in the payloads; NULL stays NULL.
    ///
    /// # Errors
    /// [`ShredError::Column`] if there is no such column, or its values are of another type.
    pub fn json_values(&self, column: usize, values: &ArrayRef) -> Result<StringArray, ShredError> {
        let unknown = || ShredError::Column {
            name: format!("number {column}"),
        };
        let column = self.columns().get(column).ok_or_else(unknown)?;
        let rows = values.len();
        let values = Rendered::of_values(column, values)?;
        let mut texts = StringBuilder::new();
        let mut text = Vec::new();
        for row in 0..rows {
            if values.is_null(row) {
                texts.append_null();
                continue;
            }
            text.clear();
            values.write(row, &mut text);
            // What is rendered is text.
            texts.append_option(std::str::from_utf8(&text).ok());
        }
        Ok(texts.finish())
    }
}
