//! What a topic does with its older records: let go of the oldest, or of those that a later one of the same key replaces.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How older records go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CleanupPolicy {
    /// By retention, if there is any.
    #[default]
    Delete,
    /// By compaction: of each key at least the latest record stays.
    Compact,
    /// By both.
    CompactDelete,
}

impl CleanupPolicy {
    /// Whether records go that have a later one of their key.
    #[must_use]
    pub const fn compacts(self) -> bool {
        matches!(self, Self::Compact | Self::CompactDelete)
    }

    /// Whether retention applies.
    #[must_use]
    pub const fn deletes(self) -> bool {
        matches!(self, Self::Delete | Self::CompactDelete)
    }
}

impl fmt::Display for CleanupPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delete => "delete",
            Self::Compact => "compact",
            Self::CompactDelete => "compact,delete",
        })
    }
}

/// What could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

impl FromStr for CleanupPolicy {
    type Err = Unreadable;

    /// A list, as Kafka has it: in any order, with spaces or without.
    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let (mut compacts, mut deletes) = (false, false);
        for name in text.split(',') {
            match name.trim() {
                "compact" => compacts = true,
                "delete" => deletes = true,
                _ => return Err(Unreadable),
            }
        }
        Ok(match (compacts, deletes) {
            (true, true) => Self::CompactDelete,
            (true, false) => Self::Compact,
            (false, _) => Self::Delete,
        })
    }
}

/// A part of a whole, from 0 to 1, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ratio(u32);

impl Ratio {
    /// One of two.
    pub const HALF: Self = Self(500_000);
    const WHOLE: u32 = 1_000_000;

    /// Whether `part` of `whole` is this much or more. Of nothing everything is.
    #[must_use]
    pub fn is_reached_by(self, part: u64, whole: u64) -> bool {
        u128::from(part) * u128::from(Self::WHOLE) >= u128::from(whole) * u128::from(self.0)
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Kafka's tools show a double: `0.5`, `1.0`.
        write!(f, "{:?}", f64::from(self.0) / f64::from(Self::WHOLE))
    }
}

impl FromStr for Ratio {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let value: f64 = text.trim().parse().map_err(|_| Unreadable)?;
        if !(0.0..=1.0).contains(&value) {
            return Err(Unreadable);
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is at most a million"
        )]
        Ok(Self((value * f64::from(Self::WHOLE)).round() as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_kafkas_lists() {
        for (text, policy) in [
            ("delete", CleanupPolicy::Delete),
            ("compact", CleanupPolicy::Compact),
            ("compact,delete", CleanupPolicy::CompactDelete),
            ("delete, compact", CleanupPolicy::CompactDelete),
        ] {
            assert_eq!(text.parse(), Ok(policy));
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for text in ["", "compacted", "compact,", "Compact"] {
            assert_eq!(text.parse::<CleanupPolicy>(), Err(Unreadable), "{text}");
        }
    }

    #[test]
    fn ratios_are_parts_of_a_whole() {
        let ratio: Ratio = "0.01".parse().unwrap();
        assert!(ratio.is_reached_by(1, 100) && !ratio.is_reached_by(99, 10_000));
        assert_eq!(
            (ratio.to_string(), "1".parse::<Ratio>().unwrap().to_string()),
            ("0.01".to_owned(), "1.0".to_owned())
        );
        assert!(Ratio::HALF.is_reached_by(u64::MAX, u64::MAX));
        for text in ["-0.1", "1.1", "NaN", "half", ""] {
            assert_eq!(text.parse::<Ratio>(), Err(Unreadable), "{text}");
        }
    }
}
