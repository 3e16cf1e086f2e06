//! How large payloads are: all the same, or drawn from a distribution.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// The largest payload that is made.
pub const MAX_PAYLOAD_BYTES: u32 = 16 << 20;
/// What a log-normal size is cut at, in medians.
const LOGNORMAL_CUT: f64 = 16.0;

/// Sizes of payloads, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PayloadSize {
    /// All the same.
    Fixed(u32),
    /// Each size from `low` to `high`, both included, equally likely.
    Uniform {
        /// The smallest.
        low: u32,
        /// The largest.
        high: u32,
    },
    /// `median * e^(sigma * N(0, 1))`, cut at 16 medians.
    LogNormal {
        /// Half of the sizes are below it.
        median: u32,
        /// The spread.
        sigma: f64,
    },
    /// From 1 to `high`, a size being as likely as it is small (Zipf with exponent 1).
    Zipf {
        /// The largest.
        high: u32,
    },
}

impl PayloadSize {
    /// Draws a size. `random` gives uniform numbers in `[0, 1)`.
    pub(crate) fn draw(&self, mut random: impl FnMut() -> f64) -> u32 {
        match *self {
            Self::Fixed(bytes) => bytes,
            Self::Uniform { low, high } => {
                low + whole(random() * (f64::from(high - low) + 1.0)).min(high - low)
            }
            Self::LogNormal { median, sigma } => {
                // Box and Muller; `1 - x` keeps the logarithm finite.
                let radius = (-2.0 * (1.0 - random()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * random()).cos();
                let factor = (sigma * normal).exp().min(LOGNORMAL_CUT);
                whole(f64::from(median) * factor).min(MAX_PAYLOAD_BYTES)
            }
            Self::Zipf { high } => whole(f64::from(high).powf(random())).clamp(1, high),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes are small and positive, and `as` saturates"
)]
fn whole(value: f64) -> u32 {
    value as u32
}

impl fmt::Display for PayloadSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bytes) => write!(f, "{bytes}"),
            Self::Uniform { low, high } => write!(f, "uniform:{low}-{high}"),
            Self::LogNormal { median, sigma } => write!(f, "lognormal:{median},{sigma}"),
            Self::Zipf { high } => write!(f, "zipf:{high}"),
        }
    }
}

impl FromStr for PayloadSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let explain = || {
            format!(
                "give BYTES, uniform:LOW-HIGH, lognormal:MEDIAN,SIGMA or zipf:HIGH, none above {MAX_PAYLOAD_BYTES}"
            )
        };
        let bytes = |text: &str| {
            text.parse()
                .ok()
                .filter(|bytes| *bytes <= MAX_PAYLOAD_BYTES)
                .ok_or_else(explain)
        };
        match text.split_once(':') {
            None => bytes(text).map(Self::Fixed),
            Some(("uniform", range)) => {
                let (low, high) = range.split_once('-').ok_or_else(explain)?;
                let (low, high) = (bytes(low)?, bytes(high)?);
                if low > high {
                    return Err(explain());
                }
                Ok(Self::Uniform { low, high })
            }
            Some(("lognormal", shape)) => {
                let (median, sigma) = shape.split_once(',').ok_or_else(explain)?;
                let sigma: f64 = sigma.parse().map_err(|_| explain())?;
                if !(0.0..=4.0).contains(&sigma) {
                    return Err("sigma is from 0 to 4".to_owned());
                }
                Ok(Self::LogNormal {
                    median: bytes(median)?,
                    sigma,
                })
            }
            Some(("zipf", high)) => match bytes(high)? {
                0 => Err(explain()),
                high => Ok(Self::Zipf { high }),
            },
            Some(_) => Err(explain()),
        }
    }
}

impl Serialize for PayloadSize {
    /// A number where all are the same, else what the command line takes.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(bytes) => serializer.serialize_u32(*bytes),
            other => serializer.collect_str(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Random;

    #[test]
    fn every_form_is_read_back_as_it_is_shown() {
        for text in [
            "0",
            "100",
            "uniform:50-200",
            "lognormal:300,0.5",
            "zipf:4096",
        ] {
            let size: PayloadSize = text.parse().unwrap();
            assert_eq!(size.to_string(), text);
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for text in [
            "",
            "-1",
            "99999999",
            "uniform:9-5",
            "uniform:5",
            "lognormal:5",
            "lognormal:5,9",
            "zipf:0",
            "what:1",
        ] {
            assert!(text.parse::<PayloadSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn drawn_sizes_follow_their_distribution() {
        let mut random = Random::new(1);
        let mut draw = |text: &str| -> Vec<u32> {
            let size: PayloadSize = text.parse().unwrap();
            let mut sizes: Vec<u32> = (0..20_000)
                .map(|_| size.draw(|| random.fraction()))
                .collect();
            sizes.sort_unstable();
            sizes
        };
        let uniform = draw("uniform:50-200");
        assert_eq!((uniform[0], uniform[19_999]), (50, 200));
        assert!((120..130).contains(&uniform[10_000]), "{}", uniform[10_000]);
        let lognormal = draw("lognormal:300,0.5");
        assert!(
            (290..310).contains(&lognormal[10_000]),
            "{}",
            lognormal[10_000]
        );
        assert!(
            (470..520).contains(&lognormal[16_827]),
            "one sigma above: {}",
            lognormal[16_827]
        );
        let zipf = draw("zipf:10000");
        assert!((80..125).contains(&zipf[10_000]), "{}", zipf[10_000]);
    }
}
