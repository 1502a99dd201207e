//! Link rates.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// A link's rate in bits per second, counted with Ethernet headers, as the
/// kernel's token bucket counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// A rate in bits per second.
    #[must_use]
    pub const fn bits(bits_per_second: u64) -> Self {
        Self(bits_per_second)
    }

    /// A rate in megabits (10^6 bits) per second.
    #[must_use]
    pub const fn mbit(megabits_per_second: u64) -> Self {
        Self(megabits_per_second * 1_000_000)
    }

    /// A rate in gigabits (10^9 bits) per second.
    #[must_use]
    pub const fn gbit(gigabits_per_second: u64) -> Self {
        Self::mbit(gigabits_per_second * 1_000)
    }

    /// Bits per second.
    #[must_use]
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Bytes per second.
    #[must_use]
    pub const fn bytes_per_second(self) -> u64 {
        self.0 / 8
    }
}

impl fmt::Display for Rate {
    /// The largest unit that needs no fraction, as `tc` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, size) in UNITS {
            if self.0 >= size && self.0.is_multiple_of(size) {
                return write!(f, "{}{unit}", self.0 / size);
            }
        }
        write!(f, "{}bit", self.0)
    }
}

impl FromStr for Rate {
    type Err = Error;

    /// Reads what `Display` writes: `200mbit`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let size = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, size)| *size);
        let size = size.or((unit == "bit").then_some(1));
        number
            .parse::<u64>()
            .ok()
            .zip(size)
            .and_then(|(number, size)| number.checked_mul(size))
            .map(Self)
            .ok_or_else(|| Error::invalid(format!("`{text}` is not a rate: write it like 200mbit or 1gbit")))
    }
}

const UNITS: [(&str, u64); 3] = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trip() {
        for rate in [Rate::gbit(10), Rate::mbit(250), Rate::bits(1_500), Rate::bits(64_000), Rate::mbit(1_500)] {
            assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate);
        }
        assert_eq!(Rate::mbit(2_000).to_string(), "2gbit");
    }

    #[test]
    fn text_nonsense_is_refused() {
        for text in ["", "fast", "10", "10mb", "-1mbit", "99999999999999999999bit", "99999999999999gbit"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }
}
