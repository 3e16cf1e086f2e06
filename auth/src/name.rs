//! Names of users.

use std::fmt;

/// Bytes a name has at most.
const MAX_NAME_BYTES: usize = 249;

/// The name of a user: 1 to 249 of `[A-Za-z0-9._@-]`, so that no mechanism has to escape it and a line of the file holds it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName(String);

/// A name that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a user's name is 1 to {MAX_NAME_BYTES} of A-Z, a-z, 0-9, '.', '_', '@' and '-'")]
pub struct UserNameError;

impl UserName {
    /// # Errors
    /// The text is no name.
    pub fn new(text: &str) -> Result<Self, UserNameError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
        if text.is_empty() || text.len() > MAX_NAME_BYTES || !text.bytes().all(is_allowed) {
            return Err(UserNameError);
        }
        Ok(Self(text.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_a_small_alphabet() {
        for name in ["a", "Alice.B-c_9@example.org", &"x".repeat(249)] {
            assert_eq!(UserName::new(name).unwrap().as_str(), name);
        }
        for name in ["", "a b", "a,b", "a=b", "ä", "a\n", "a:b", &"x".repeat(250)] {
            assert_eq!(UserName::new(name), Err(UserNameError), "{name:?}");
        }
    }
}
