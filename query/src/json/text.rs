//! Bytes read as text: NULL where they are not UTF-8.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, GenericBinaryArray, GenericStringArray,
    OffsetSizeTrait, StringViewArray,
};
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::ColumnarValue;

/// The text type that holds what bytes of `data_type` spell; `None` where they are not bytes.
pub(crate) fn text_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Binary => Some(DataType::Utf8),
        DataType::LargeBinary => Some(DataType::LargeUtf8),
        DataType::BinaryView => Some(DataType::Utf8View),
        _ => None,
    }
}

/// `value` as text if it is bytes, otherwise as it was. Bytes that are not UTF-8 become NULL.
pub(crate) fn text_value(value: ColumnarValue) -> ColumnarValue {
    match value {
        ColumnarValue::Array(array) => ColumnarValue::Array(text_array(&array)),
        ColumnarValue::Scalar(scalar) => ColumnarValue::Scalar(text_scalar(scalar)),
    }
}

/// Shares the buffers where every value is UTF-8, copies the good values where one is not.
fn text_array(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Binary => text_of(array.as_binary::<i32>()),
        DataType::LargeBinary => text_of(array.as_binary::<i64>()),
        DataType::BinaryView => text_view_of(array.as_binary_view()),
        _ => Arc::clone(array),
    }
}

fn text_of<O: OffsetSizeTrait>(bytes: &GenericBinaryArray<O>) -> ArrayRef {
    match GenericStringArray::<O>::try_from_binary(bytes.clone()) {
        Ok(text) => Arc::new(text),
        Err(_) => Arc::new(
            bytes
                .iter()
                .map(|value| value.and_then(text_of_bytes))
                .collect::<GenericStringArray<O>>(),
        ),
    }
}

fn text_view_of(bytes: &BinaryViewArray) -> ArrayRef {
    match bytes.clone().to_string_view() {
        Ok(text) => Arc::new(text),
        Err(_) => Arc::new(
            bytes
                .iter()
                .map(|value| value.and_then(text_of_bytes))
                .collect::<StringViewArray>(),
        ),
    }
}

fn text_of_bytes(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn text_scalar(scalar: ScalarValue) -> ScalarValue {
    let text = |bytes: Option<Vec<u8>>| bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    match scalar {
        ScalarValue::Binary(bytes) => ScalarValue::Utf8(text(bytes)),
        ScalarValue::LargeBinary(bytes) => ScalarValue::LargeUtf8(text(bytes)),
        ScalarValue::BinaryView(bytes) => ScalarValue::Utf8View(text(bytes)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryArray, StringArray};

    use super::*;

    fn text(values: Vec<Option<&[u8]>>) -> (ArrayRef, ArrayRef) {
        let bytes: ArrayRef = Arc::new(BinaryArray::from(values));
        let text = text_array(&bytes);
        (bytes, text)
    }

    #[test]
    fn valid_text_shares_the_buffer_of_the_bytes() {
        let (bytes, text) = text(vec![Some(b"{}"), None, Some("\u{e9}".as_bytes())]);
        assert_eq!(
            text.as_string::<i32>(),
            &StringArray::from(vec![Some("{}"), None, Some("\u{e9}")])
        );
        assert_eq!(
            bytes.as_binary::<i32>().values().as_ptr(),
            text.as_string::<i32>().values().as_ptr()
        );
    }

    #[test]
    fn bytes_that_are_not_utf8_become_null_and_their_neighbours_stay() {
        let (_, text) = text(vec![
            Some(b"a"),
            Some(b"\xff\xfe\x00"),
            Some(b""),
            Some(b"\xf0\x28\x8c\x28"),
        ]);
        assert_eq!(
            text.as_string::<i32>(),
            &StringArray::from(vec![Some("a"), None, Some(""), None])
        );
    }

    #[test]
    fn a_character_split_over_two_values_is_text_in_neither() {
        let (_, text) = text(vec![Some(b"\xc3"), Some(b"\xa9")]);
        assert_eq!(text.null_count(), 2);
    }

    #[test]
    fn scalars_follow_the_same_rule() {
        assert_eq!(
            text_scalar(ScalarValue::Binary(Some(b"x".to_vec()))),
            ScalarValue::from("x")
        );
        assert_eq!(
            text_scalar(ScalarValue::Binary(Some(vec![0xff]))),
            ScalarValue::Utf8(None)
        );
    }
}
