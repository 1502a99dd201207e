//! Values of options and of fault specifications, as people write them.
//!
//! All functions return what is wrong as the end of a sentence that begins with the option and its value.

use std::ops::RangeInclusive;

use srd_core::{Share, Span};

/// Result of reading a value.
pub(crate) type Parsed<T> = Result<T, String>;

/// A whole number in a range; `64k`, `64K` and `64KiB` in powers of 1,024, `64KB` in powers of 1,000.
pub(crate) fn number<T>(text: &str, range: RangeInclusive<T>) -> Parsed<T>
where
    T: Copy + PartialOrd + std::fmt::Display + TryFrom<u64>,
{
    size(text)
        .and_then(|n| T::try_from(n).ok())
        .filter(|n| range.contains(n))
        .ok_or_else(|| format!("must be a number from {} to {}", range.start(), range.end()))
}

/// A power of two in a range.
pub(crate) fn power_of_two(text: &str, range: RangeInclusive<u32>) -> Parsed<u32> {
    number(text, range.clone())
        .ok()
        .filter(|n| n.is_power_of_two())
        .ok_or_else(|| format!("must be a power of two from {} to {}", range.start(), range.end()))
}

/// On or off.
pub(crate) fn switch(text: &str) -> Parsed<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => Ok(true),
        "0" | "off" | "no" | "false" => Ok(false),
        _ => Err("must be on or off".to_owned()),
    }
}

/// A rate in bits per second, such as `10G`; returns bytes per second, at least 1,000.
pub(crate) fn rate(text: &str) -> Parsed<u64> {
    bits(text)
        .map(|bits| bits / 8)
        .ok_or_else(|| "must be a rate in bits per second, 8k or more, such as 500M or 10G".to_owned())
}

/// A time with its unit, in a range.
pub(crate) fn time(text: &str, range: RangeInclusive<Span>) -> Parsed<Span> {
    let wanted =
        || format!("must be a time from {} to {}, such as 200us, 5ms or 2s", Text(*range.start()), Text(*range.end()));
    span(text).filter(|t| range.contains(t)).ok_or_else(wanted)
}

/// A time with its unit: `200us`, `1.5ms`, `2s`, `1m`, `1h`; `0` needs none.
pub(crate) fn span(text: &str) -> Option<Span> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let ns: u64 = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "" if digits == "0" => 1,
        _ => return None,
    };
    decimal(digits, ns).map(Span::from_nanos)
}

/// A share in per cent (the sign may be left out) or in parts per million (`50ppm`).
pub(crate) fn share(text: &str) -> Parsed<Share> {
    let parts = match text.strip_suffix("ppm") {
        Some(parts) => decimal(parts, 1),
        None => decimal(text.strip_suffix('%').unwrap_or(text), 10_000),
    };
    match parts {
        Some(0) if text.contains(|c| matches!(c, '1'..='9')) => {
            Err("is less than 1ppm (0.0001%), the smallest share; write that, or 0".to_owned())
        }
        Some(n @ 0..=1_000_000) => Ok(Share::per_million(n as u32)),
        _ => Err("must be a share from 0% to 100%, such as 1%, 0.05% or 50ppm".to_owned()),
    }
}

/// A range of ports.
pub(crate) fn ports(text: &str) -> Parsed<RangeInclusive<u16>> {
    let parse = |t: &str| t.trim().parse::<u16>().ok().filter(|&p| p > 0);
    text.split_once('-')
        .and_then(|(first, last)| Some(parse(first)?..=parse(last)?))
        .filter(|range| !range.is_empty())
        .ok_or_else(|| "must be a range of ports, such as 40000-40999".to_owned())
}

/// One of some words.
pub(crate) fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Parsed<T> {
    words.iter().find(|w| w.0.eq_ignore_ascii_case(text)).map(|w| w.1).ok_or_else(|| {
        let names: Vec<_> = words.iter().map(|w| w.0).collect();
        format!("must be one of {}", names.join(", "))
    })
}

/// So many bytes: `64k`, `64K` and `64KiB` are powers of 1,024, `64KB` is one of 1,000. `None` if the text is no such number.
pub fn size(text: &str) -> Option<u64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit()).to_ascii_lowercase();
    scaled(text, if ["kb", "mb", "gb", "tb"].contains(&unit.as_str()) { 1000 } else { 1024 })
}

/// A rate in bits per second, at least 8,000: `200M`, `25G`. `None` if the text is none.
pub fn bits(text: &str) -> Option<u64> {
    // A capital B is a byte.
    scaled(text, 1000).filter(|&bits| bits >= 8_000 && !text.contains('B'))
}

/// A whole number with an optional suffix k, M, G or T (any case, `iB` or `B` may follow) for the powers of `base`. `None` if the
/// text is none, or is beyond 64 bits.
pub fn scaled(text: &str, base: u64) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let power = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(base.pow(power))
}

/// A decimal fraction, times `unit`, without floating point; digits that are finer than the unit are cut off.
fn decimal(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let mut rest = 0;
    let mut step = unit;
    for digit in fraction.bytes() {
        step /= 10;
        rest += u64::from(digit - b'0') * step;
    }
    whole.parse::<u64>().ok()?.checked_mul(unit)?.checked_add(rest)
}

/// A time as [`span`] reads it.
pub(crate) struct Text(pub(crate) Span);

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ns = self.0.as_nanos();
        let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
        let (unit, size) = units.into_iter().find(|(_, size)| ns.is_multiple_of(*size)).unwrap_or(("ns", 1));
        write!(f, "{}{unit}", ns / size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_their_unit() {
        let us = Span::from_micros;
        for (text, want) in [
            ("200us", us(200)),
            ("1.5ms", us(1500)),
            ("2s", us(2_000_000)),
            ("0.000001s", us(1)),
            ("1m", us(60_000_000)),
            ("1h", us(3_600_000_000)),
        ] {
            assert_eq!(span(text), Some(want), "{text}");
        }
        assert_eq!(span("0"), Some(Span::ZERO));
        for text in
            ["", "5", "s", "1 s", "-1s", "1.s.s", "1e3s", "99999999999999999999s", "18446744073709551615s", ".5s"]
        {
            assert_eq!(span(text), None, "{text}");
        }
    }

    #[test]
    fn shares_in_per_cent_and_parts_per_million() {
        for (text, want) in [("1%", 10_000), ("0.05%", 500), ("50ppm", 50), ("100", 1_000_000), ("0", 0), ("0.0001", 1)]
        {
            assert_eq!(share(text), Ok(Share::per_million(want)), "{text}");
        }
        for text in ["", "%", "101%", "-1%", "one", "1000001ppm", "1%%", "0.00001%", "0.5ppm"] {
            assert!(share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_rates_ports_and_switches() {
        assert_eq!([number("8k", 0..=10_000), number("7", 1..=6)].map(|n| n.ok()), [Some(8192_u32), None]);
        let size = |text| number(text, 0..=u64::MAX).ok();
        assert_eq!(["64K", "64KiB", "64KB", "1tb"].map(size), [65_536, 65_536, 64_000, 1_000_000_000_000].map(Some));
        assert_eq!(["8kbb", "8kii", "8ib", "8 k", ""].map(size), [None; 5]);
        assert_eq!((power_of_two("64", 1..=64), power_of_two("63", 1..=64).is_err()), (Ok(64), true));
        assert_eq!((rate("10G"), rate("7k").is_err(), rate("10GB").is_err()), (Ok(1_250_000_000), true, true));
        assert_eq!((ports("1-9"), ports("9-1").is_err(), ports("0-9").is_err()), (Ok(1..=9), true, true));
        assert_eq!((switch("On"), switch("0"), switch("maybe").is_err()), (Ok(true), Ok(false), true));
    }
}
