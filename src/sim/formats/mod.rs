//! Files that other simulators read: htsim's connection matrices and topologies, ns-3's (HPCC) flows and topologies, and
//! flow-size distributions. Readers are strict; errors say the line.

pub(crate) mod cdf;
pub(crate) mod hpcc;
pub(crate) mod htsim;
mod triggers;

/// Lines that say something, numbered from 1, in words. `#` begins a comment.
fn lines(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let words = |line: &'_ str| line.split('#').next().unwrap_or_default().split_whitespace().count();
    text.lines().enumerate().filter(move |(_, l)| words(l) > 0).map(|(i, l)| {
        let words = l.split('#').next().unwrap_or_default().split_whitespace().collect();
        (i + 1, words)
    })
}

/// A number, or an error that says what it should have been.
fn number<T: std::str::FromStr>(line: usize, what: &str, word: Option<&&str>) -> Result<T, String> {
    let word = word.ok_or_else(|| format!("line {line}: {what} is missing"))?;
    word.parse().map_err(|_| format!("line {line}: {what} is '{word}', which is no such number"))
}
