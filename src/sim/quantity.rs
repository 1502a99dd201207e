//! Sizes, rates and times as people write them in scenario files: `2MB`, `100Gbps`, `1us`.
//!
//! Sizes in bytes take decimal (kB, MB, GB) and binary (KiB, MiB, GiB) units, as the papers and the switches' data sheets
//! do, and no bare k, M or G: options of commands mean powers of 1,024 by those. Rates are bits per second.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use simnet::Rng;
use srd::Span;

/// Bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(crate) struct Size(pub(crate) u64);

/// Bits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(crate) struct Rate(pub(crate) u64);

/// A length of time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(crate) struct Duration(pub(crate) Span);

/// A number and its unit.
fn split(text: &str) -> Option<(f64, String)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let number: f64 = text[..end].replace('_', "").parse().ok()?;
    Some((number, text[end..].trim().to_ascii_lowercase()))
}

fn scaled(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let (number, unit) = split(text)?;
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    let value = (number * scale).round();
    (value.is_finite() && value < 1.8e19).then_some(value as u64)
}

impl Size {
    pub(crate) fn parse(text: &str) -> Result<Size, String> {
        let units = [
            ("", 1.0),
            ("b", 1.0),
            ("kb", 1e3),
            ("mb", 1e6),
            ("gb", 1e9),
            ("kib", 1024.0),
            ("mib", 1_048_576.0),
            ("gib", 1_073_741_824.0),
        ];
        scaled(text, &units).map(Size).ok_or_else(|| {
            format!("'{text}' is no size; write for example \"64KB\" (64,000 bytes), \"64KiB\" (65,536)")
        })
    }
}

impl Rate {
    pub(crate) fn parse(text: &str) -> Result<Rate, String> {
        let units = [
            ("bps", 1.0),
            ("kbps", 1e3),
            ("mbps", 1e6),
            ("gbps", 1e9),
            ("tbps", 1e12),
            ("k", 1e3),
            ("m", 1e6),
            ("g", 1e9),
            ("", 1.0),
        ];
        // Capital letters mean nothing elsewhere, but tell bytes from bits.
        if text.contains('B') {
            return Err(format!("'{text}' counts bytes, rates are in bits per second: 100 GB/s are \"800Gbps\""));
        }
        let rate = scaled(text, &units).filter(|r| *r > 0);
        rate.map(Rate).ok_or_else(|| format!("'{text}' is no rate; write for example \"100Gbps\" (bits per second)"))
    }
}

impl Duration {
    pub(crate) fn parse(text: &str) -> Result<Duration, String> {
        let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
        let ns = scaled(text, &units);
        ns.map(|ns| Duration(Span::from_nanos(ns)))
            .ok_or_else(|| format!("'{text}' is no time; write for example \"1us\", \"50ms\""))
    }
}

macro_rules! from_toml {
    ($type:ident, $what:literal, $number:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                struct Reader;
                impl Visitor<'_> for Reader {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($what)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        $type::parse(text).map_err(E::custom)
                    }
                    fn visit_i64<E: de::Error>(self, n: i64) -> Result<$type, E> {
                        let number: Option<fn(u64) -> $type> = $number;
                        let unsigned = u64::try_from(n).map_err(|_| E::custom(format!("{n} is negative")))?;
                        number.map(|f| f(unsigned)).ok_or_else(|| E::custom(format!("{n} needs a unit: {}", $what)))
                    }
                }
                deserializer.deserialize_any(Reader)
            }
        }
    };
}

from_toml!(Size, "a size such as \"2MB\"", Some(Size));
from_toml!(Rate, "a rate such as \"100Gbps\"", None);
from_toml!(Duration, "a time such as \"1us\"", None);

/// Flow sizes as a cumulative distribution: bytes and share, linear in between.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Cdf(Vec<(f64, f64)>);

impl Cdf {
    /// A distribution from points (bytes, per cent) that rise from 0 to 100.
    pub(crate) fn new(points: Vec<(f64, f64)>) -> Result<Cdf, String> {
        if points.len() < 2 {
            return Err("a distribution needs two points at least".into());
        }
        if let Some(w) = points.windows(2).find(|w| w[1].0 < w[0].0 || w[1].1 < w[0].1) {
            return Err(format!("the point ({}, {}) lies below the one before it", w[1].0, w[1].1));
        }
        let last = points[points.len() - 1];
        if last.1 != 100.0 || points[0].1 < 0.0 || points[0].0 < 0.0 {
            return Err(format!("the distribution ends at {} %, not at 100, or begins below 0", last.1));
        }
        Ok(Cdf(points))
    }

    /// Mean size in bytes.
    pub(crate) fn mean(&self) -> f64 {
        let first = self.0[0];
        let pieces = self.0.windows(2).map(|w| (w[0].0 + w[1].0) / 2.0 * (w[1].1 - w[0].1) / 100.0);
        first.0 * first.1 / 100.0 + pieces.sum::<f64>()
    }

    /// A size, at least one byte.
    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        let share = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * 100.0;
        let i = self.0.partition_point(|p| p.1 < share).clamp(1, self.0.len() - 1);
        let ((x0, y0), (x1, y1)) = (self.0[i - 1], self.0[i]);
        let size = if y1 > y0 { x0 + (x1 - x0) * ((share - y0) / (y1 - y0)).clamp(0.0, 1.0) } else { x1 };
        (size.round() as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_people_write_them() {
        assert_eq!(Size::parse("2MB"), Ok(Size(2_000_000)));
        assert_eq!(Size::parse("64 KiB"), Ok(Size(65_536)));
        assert_eq!(Size::parse("1_000"), Ok(Size(1_000)));
        assert_eq!(Rate::parse("100Gbps"), Ok(Rate(100_000_000_000)));
        assert_eq!(Rate::parse("2.5G"), Ok(Rate(2_500_000_000)));
        assert_eq!(Duration::parse("1.5us"), Ok(Duration(Span::from_nanos(1_500))));
        for bad in ["", "MB", "-1", "1e3", "2 parsecs", "1.2.3us"] {
            assert!(Size::parse(bad).is_err() && Rate::parse(bad).is_err() && Duration::parse(bad).is_err(), "{bad}");
        }
        assert!(Size::parse("2M").expect_err("ambiguous").contains("64KiB"));
        assert!(Rate::parse("100GBps").expect_err("bytes").starts_with("'100GBps' counts bytes"));
        assert!(Duration::parse("5").is_err() && Rate::parse("0").is_err());
    }

    #[test]
    fn a_distribution_has_its_mean() {
        let cdf = Cdf::new(vec![(0.0, 0.0), (1_000.0, 50.0), (9_000.0, 100.0)]).expect("valid");
        assert_eq!(cdf.mean(), 250.0 + 2_500.0);
        let mut rng = Rng::new(3);
        let n = 20_000;
        let mean = (0..n).map(|_| cdf.draw(&mut rng) as f64).sum::<f64>() / f64::from(n);
        assert!((mean / cdf.mean() - 1.0).abs() < 0.02, "{mean}");
        for bad in [vec![], vec![(0.0, 0.0), (5.0, 90.0)], vec![(5.0, 0.0), (1.0, 100.0)]] {
            assert!(Cdf::new(bad).is_err());
        }
    }
}
