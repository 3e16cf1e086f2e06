//! Names of topics and consumer groups.
//!
//! **PROTO-5**: a name that exists as a value of these types is safe as one component of a path: 1 to 249 bytes of
//! `[A-Za-z0-9._-]`, and neither `.` nor `..`. There is no other way to make one.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name, in bytes: Kafka's limit, which leaves room for suffixes in a 255-byte file name.
pub const MAX_NAME_BYTES: usize = 249;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// No bytes at all.
    #[error("the name is empty")]
    Empty,
    /// More than [`MAX_NAME_BYTES`].
    #[error("the name is {found_bytes} bytes long, the limit is {MAX_NAME_BYTES}")]
    TooLong {
        /// The length of the name.
        found_bytes: usize,
    },
    /// A byte outside `[A-Za-z0-9._-]`.
    #[error(
        "the name has the byte {found:#04x} at position {position}; allowed are A-Z a-z 0-9 . _ -"
    )]
    InvalidByte {
        /// The first such byte.
        found: u8,
        /// Where it stands, from 0.
        position: usize,
    },
    /// `.` or `..`, which mean folders in a path.
    #[error("the name may not be `.` or `..`")]
    Dots,
}

fn check(name: &[u8]) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong {
            found_bytes: name.len(),
        });
    }
    let bad = name
        .iter()
        .position(|byte| !(byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')));
    if let Some(position) = bad {
        return Err(NameError::InvalidByte {
            found: name[position],
            position,
        });
    }
    if name == b"." || name == b".." {
        return Err(NameError::Dots);
    }
    Ok(())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `name` and keeps it. Cloning the result is cheap.
            ///
            /// # Errors
            /// [`NameError`] says which rule `name` breaks.
            pub fn new(name: &str) -> Result<Self, NameError> {
                check(name.as_bytes())?;
                Ok(Self(Arc::from(name)))
            }

            /// Checks `name` as it came over a wire, and keeps it.
            ///
            /// # Errors
            /// [`NameError`] says which rule `name` breaks; bytes that are not UTF-8 are invalid bytes.
            pub fn from_bytes(name: &[u8]) -> Result<Self, NameError> {
                check(name)?;
                // The check leaves ASCII alone, so this finds nothing left to refuse.
                let name = str::from_utf8(name)
                    .map_err(|e| NameError::InvalidByte { found: name[e.valid_up_to()], position: e.valid_up_to() })?;
                Ok(Self(Arc::from(name)))
            }

            /// The name itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name_type! {
    /// The name of a topic.
    TopicName
}
name_type! {
    /// The name of a consumer group.
    GroupName
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    // PUB-13: a topic named like a path created folders outside the store.
    #[test]
    fn names_that_could_leave_their_folder_are_refused() {
        let long = "a".repeat(255);
        let limit = "a".repeat(250);
        for name in [
            "../../x", "..", ".", "/etc/x", "a/b", "a\\b", "a%2fb", "x\0y", &long, &limit, "",
            "ünï", "a\nb", "a b",
        ] {
            assert!(TopicName::new(name).is_err(), "{name:?}");
            assert!(GroupName::new(name).is_err(), "{name:?}");
            assert_eq!(
                TopicName::from_bytes(name.as_bytes()).unwrap_err(),
                TopicName::new(name).unwrap_err()
            );
        }
        assert!(TopicName::from_bytes(b"\xff\xfe").is_err());
    }

    #[test]
    fn the_refusal_names_the_rule_and_the_place() {
        assert_eq!(
            TopicName::new("a/b"),
            Err(NameError::InvalidByte {
                found: b'/',
                position: 1
            })
        );
        assert_eq!(TopicName::new(".."), Err(NameError::Dots));
        assert_eq!(TopicName::new(""), Err(NameError::Empty));
        assert_eq!(
            TopicName::new(&"a".repeat(250)),
            Err(NameError::TooLong { found_bytes: 250 })
        );
    }

    #[test]
    fn ordinary_names_pass_and_stay_apart() {
        for name in [
            "t",
            "a.b",
            "a_b",
            "Orders",
            "orders",
            "eu-1",
            "...",
            ".a",
            "CON",
            "1x",
            &"a".repeat(249),
        ] {
            assert_eq!(TopicName::new(name).unwrap().as_str(), name);
        }
        assert_ne!(
            TopicName::new("a.b").unwrap(),
            TopicName::new("a_b").unwrap()
        );
    }
}
