//! Numbers as people write them on a command line and read them in a table.

use srd::{CcChoice, Span};
use verbs_shim::options::value;

/// Largest message, in bytes: the core's default limit, which is EFA's.
pub(crate) const MAX_SIZE: u64 = 1 << 30;

/// A message size: `64`, `8k`, `1M`, `1G` and `8KiB` in powers of 1,024; `8KB` in powers of 1,000, as in scenarios.
pub(crate) fn size(text: &str) -> Result<u32, String> {
    let bytes = value::size(text).ok_or_else(|| format!("'{text}' is no size; write for example 64, 8k or 1M"))?;
    if (1..=MAX_SIZE).contains(&bytes) {
        Ok(bytes as u32)
    } else {
        Err(format!("{text} is out of range, 1 byte to 1G"))
    }
}

/// A count: `1000`, `20k`, `1M`, powers of 1,000.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    match value::scaled(text, 1000) {
        Some(n) if n > 0 => Ok(n),
        _ => Err(format!("'{text}' is no count; write for example 1000, 20k or 1M")),
    }
}

/// A time in seconds, above zero and at most a day.
pub(crate) fn seconds(text: &str) -> Result<Span, String> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 86_400.0 => Ok(Span::from_secs_f64(s)),
        _ => Err(format!("'{text}' is no time in seconds above 0 and up to 86400")),
    }
}

/// A time in seconds that may be zero, at most a day.
pub(crate) fn seconds_or_none(text: &str) -> Result<Span, String> {
    if text.parse() == Ok(0.0) { Ok(Span::ZERO) } else { seconds(text) }
}

/// A loss share in per cent, in parts per million.
pub(crate) fn percent(text: &str) -> Result<u32, String> {
    match text.trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(p) if p > 0.0 && p < 1e-4 => Err(format!("'{text}' is less than 0.0001 %, the smallest share beside 0")),
        Ok(p) if (0.0..=90.0).contains(&p) => Ok((p * 1e4).round() as u32),
        _ => Err(format!("'{text}' is no share in per cent from 0 to 90")),
    }
}

/// A congestion controller: `delay`, or `fixed:RATE` with RATE in bits per second.
pub(crate) fn congestion_control(text: &str) -> Result<CcChoice, String> {
    if text == "delay" {
        return Ok(CcChoice::Delay);
    }
    let bits = text.strip_prefix("fixed:").and_then(|r| rate(r).ok());
    let rate = bits.ok_or_else(|| format!("'{text}' is neither 'delay' nor 'fixed:RATE' such as fixed:10G"))? / 8;
    // A window that never binds before the rate does: 10 ms of it, at least 16 packets of 9 KB.
    Ok(CcChoice::Fixed { rate, window: (rate / 100).max(16 * 9000) })
}

/// A rate in bits per second: `200M`, `25G`.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    value::bits(text)
        .ok_or_else(|| format!("'{text}' is no rate in bits per second from 8k; write for example 200M or 25G"))
}

/// `1234567` as `1,234,567`.
pub(crate) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (k, c) in digits.chars().enumerate() {
        if k > 0 && (digits.len() - k).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A message size as [`size`] reads it.
pub(crate) fn size_text(n: u32) -> String {
    match n {
        0 => "0 B".to_owned(),
        _ if n.is_multiple_of(1 << 30) => format!("{}G", n >> 30),
        _ if n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        _ if n.is_multiple_of(1 << 10) => format!("{}k", n >> 10),
        _ => format!("{n} B"),
    }
}

/// So many of something.
pub(crate) fn plural(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Bytes of memory, in powers of 1,024.
pub(crate) fn memory(n: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(size, _)| n >= *size) {
        Some((size, unit)) if n.is_multiple_of(size) => format!("{} {unit}", n / size),
        Some((size, unit)) => format!("{:.1} {unit}", n as f64 / size as f64),
        None => format!("{n} B"),
    }
}

/// Bytes in the unit that keeps the number short.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..10_000_000 => format!("{:.1} KB", n as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.1} GB", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_takes_suffixes() {
        let sizes = [("64", 64), ("8k", 8192), ("8K", 8192), ("8KiB", 8192), ("1M", 1 << 20), ("1g", 1 << 30)];
        for (text, n) in sizes {
            assert_eq!(size(text), Ok(n), "{text}");
        }
        assert_eq!([size("8KB"), size("2mb"), size("2MiB")], [Ok(8_000), Ok(2_000_000), Ok(2 << 20)]);
        for text in ["", "k", "8x", "8kbb", "8ki", "-1", "1.5k", "0", "2G", "99999999999999999999", "17179869184G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn size_is_written_as_it_is_read() {
        for n in [1024, 8192, 10 << 10, 1 << 20, 3 << 20, 1 << 30] {
            assert_eq!(size(&size_text(n)), Ok(n));
        }
        assert_eq!([size_text(64), size_text(1500)], ["64 B", "1500 B"]);
    }

    #[test]
    fn congestion_control_takes_bits_per_second() {
        assert_eq!(congestion_control("delay"), Ok(CcChoice::Delay));
        let fixed = CcChoice::Fixed { rate: 1_250_000_000, window: 12_500_000 };
        assert_eq!(congestion_control("fixed:10G"), Ok(fixed));
        for text in ["", "fixed", "fixed:", "fixed:0", "fixed:10GB", "fixed:fast", "bbr"] {
            assert!(congestion_control(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_in_bits() {
        assert_eq!([rate("200M"), rate("25g")], [Ok(200_000_000), Ok(25_000_000_000)]);
        assert!(["25GB", "7k", "x"].iter().all(|t| rate(t).is_err()));
    }

    #[test]
    fn percent_becomes_parts_per_million() {
        assert_eq!([percent("1"), percent("0.01%"), percent("0")], [Ok(10_000), Ok(100), Ok(0)]);
        assert!(["-1", "91", "x", "nan", "0.00001"].iter().all(|t| percent(t).is_err()));
    }

    #[test]
    fn seconds_must_make_sense() {
        assert_eq!([seconds("2"), seconds("0.5s")], [Ok(Span::from_secs(2)), Ok(Span::from_millis(500))]);
        assert!(["0", "-1", "x", "nan", "inf", "1e9"].iter().all(|t| seconds(t).is_err()));
        assert_eq!(seconds_or_none("0"), Ok(Span::ZERO));
    }

    #[test]
    fn memory_counts_in_powers_of_two() {
        assert_eq!([0, 8 << 20, 1_000_000, 3 << 29].map(memory), ["0 B", "8 MiB", "976.6 KiB", "1.5 GiB"]);
        assert_eq!([plural(1, "path", "paths"), plural(0, "path", "paths")], ["1 path", "0 paths"]);
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(
            [thousands(0), thousands(999), thousands(1000), thousands(1_234_567)],
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
