//! Protobuf payloads: one message of the declared type.
//!
//! The type comes from the text of a `.proto` file, compiled by `protox` without other files than Google's well-known ones,
//! or from a descriptor set. Messages are read by `prost-reflect`, which bounds how deep they nest.
//!
//! A field that is not there is NULL where its type says whether it is (`optional`, `oneof`, messages), and else has its default,
//! as everywhere in Protobuf. Wrappers (`google.protobuf.Int64Value` and so on) are the value they wrap, or NULL.

mod columns;
mod values;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use protox::Compiler;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};

use crate::columns::Column;
use crate::framing::{Framing, behind_confluent, behind_indexes};
use crate::types::ColumnType;
use crate::value::{ListItems, Misfit, Slot};

/// Under this name the declared file is compiled.
const FILE_NAME: &str = "schema.proto";
/// Messages above this are not read: in memory they take up to some 60 times their bytes.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// A message type, ready to read with.
#[derive(Debug)]
pub(crate) struct Protobuf {
    message: MessageDescriptor,
    framing: Framing,
}

/// Finds the declared file only.
struct Declared(String);

impl FileResolver for Declared {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match name == FILE_NAME {
            true => File::from_source(name, &self.0),
            false => Err(protox::Error::file_not_found(name)),
        }
    }
}

/// The types of a `.proto` file's text.
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn compile(proto: &str) -> Result<DescriptorPool, String> {
    let mut resolver = ChainFileResolver::new();
    resolver.add(Declared(proto.to_owned()));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler
        .include_imports(true)
        .open_file(FILE_NAME)
        .map_err(|error| error.to_string())?;
    Ok(compiler.descriptor_pool())
}

/// The types of a descriptor set (`protoc --descriptor_set_out --include_imports`), in base64.
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn descriptor_set(text: &str) -> Result<DescriptorPool, String> {
    let bytes = STANDARD
        .decode(text)
        .map_err(|error| format!("it is not base64: {error}"))?;
    DescriptorPool::decode(bytes.as_slice()).map_err(|error| error.to_string())
}

impl Protobuf {
    /// The message type of this full name; without a name the only one of the declared types.
    ///
    /// # Errors
    /// That there is none, with the names of those that there are.
    pub(crate) fn new(
        pool: &DescriptorPool,
        name: Option<&str>,
        framing: Framing,
    ) -> Result<Self, String> {
        let declared: Vec<MessageDescriptor> = pool
            .all_messages()
            .filter(|message| !message.is_map_entry())
            .filter(|message| message.package_name() != "google.protobuf")
            .collect();
        let found = match (name, declared.as_slice()) {
            (Some(name), _) => pool.get_message_by_name(name),
            (None, [only]) => Some(only.clone()),
            (None, _) => None,
        };
        let message = found.ok_or_else(|| {
            let names: Vec<_> = declared.iter().map(MessageDescriptor::full_name).collect();
            format!("name one of the messages {}", names.join(", "))
        })?;
        Ok(Self { message, framing })
    }

    /// The message's full name.
    pub(crate) fn message_name(&self) -> &str {
        self.message.full_name()
    }

    /// A column for each field of the message.
    ///
    /// # Errors
    /// The field that has no type of ours, in words.
    pub(crate) fn columns(&self) -> Result<Vec<Column>, String> {
        columns::of_message(&self.message)
    }

    /// Reads `payload` into `row`.
    ///
    /// # Errors
    /// The payload does not fit as a whole.
    pub(crate) fn read<'a>(
        &self,
        payload: &[u8],
        columns: &[Column],
        types: &[ColumnType],
        row: &mut [Slot<'a>],
    ) -> Result<(), Misfit> {
        let encoded = match self.framing {
            Framing::Plain => payload,
            Framing::Confluent => behind_indexes(behind_confluent(payload)?)?,
        };
        if encoded.len() > MAX_MESSAGE_BYTES {
            return Err(Misfit(format!(
                "a message of {} bytes, more than {MAX_MESSAGE_BYTES}",
                encoded.len()
            )));
        }
        let message = DynamicMessage::decode(self.message.clone(), encoded)
            .map_err(|error| Misfit(format!("no {}: {error}", self.message.full_name())))?;
        let mut room = ListItems::default();
        for ((slot, column), data_type) in row.iter_mut().zip(columns).zip(types) {
            *slot = values::at(&message, column.path.steps(), data_type, &mut room);
        }
        Ok(())
    }
}
