//! Ids of queries.

use std::fmt::{Display, Formatter};
use std::str::FromStr;

/// Names a query: which start of the engine, and the how manieth since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueryId {
    /// When the engine started, by its clock.
    pub(crate) epoch_ns: u64,
    pub(crate) number: u64,
}

impl QueryId {
    /// As bytes of a ticket.
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        ((u128::from(self.epoch_ns) << 64) | u128::from(self.number)).to_be_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [e0, e1, e2, e3, e4, e5, e6, e7, number @ ..] = bytes;
        Self {
            epoch_ns: u64::from_be_bytes([e0, e1, e2, e3, e4, e5, e6, e7]),
            number: u64::from_be_bytes(number),
        }
    }
}

impl Display for QueryId {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}-{}", self.epoch_ns, self.number)
    }
}

impl FromStr for QueryId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (epoch, number) = text.split_once('-').ok_or(())?;
        Ok(Self {
            epoch_ns: u64::from_str_radix(epoch, 16).map_err(drop)?,
            number: number.parse().map_err(drop)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back_from_its_text_and_its_bytes() {
        let id = QueryId {
            epoch_ns: 0x17f0_1234_5678_9abc,
            number: 42,
        };
        assert_eq!(id.to_string(), "17f0123456789abc-42");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(QueryId::from_bytes(id.to_bytes()), id);
        for strange in ["", "-", "x-1", "1", "1-", "1-x"] {
            assert_eq!(strange.parse::<QueryId>(), Err(()), "{strange}");
        }
    }
}
