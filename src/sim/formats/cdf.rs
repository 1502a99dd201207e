//! Flow-size distributions: lines of `bytes cumulative_percent`, from 0 to 100, linear in between (the format of the
//! HPCC traffic generator).

use super::{lines, number};
use crate::sim::quantity::Cdf;

/// The web-search workload of DCTCP (Alizadeh et al., SIGCOMM 2010), as the HPCC generator has it.
pub(crate) const WEBSEARCH: &str = "0 0\n10000 15\n20000 20\n30000 30\n50000 40\n80000 53\n200000 60\n1000000 70\n\
                                    2000000 80\n5000000 90\n10000000 97\n30000000 100\n";

/// Reads a distribution.
pub(crate) fn parse(text: &str) -> Result<Cdf, String> {
    let mut points = Vec::new();
    for (line, words) in lines(text) {
        let value = |what: &str, i: usize| match number::<f64>(line, what, words.get(i))? {
            value if value.is_finite() => Ok(value),
            value => Err(format!("line {line}: {what} is {value}")),
        };
        let point = (value("the size", 0)?, value("the percentage", 1)?);
        if words.len() > 2 {
            return Err(format!("line {line}: more than a size and a percentage"));
        }
        points.push(point);
    }
    Cdf::new(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn websearch_is_what_its_papers_say() {
        let mean = parse(WEBSEARCH).expect("valid").mean();
        assert!((1.6e6..1.8e6).contains(&mean), "{mean}");
    }

    #[test]
    fn errors_say_the_line() {
        assert!(parse("0 0\n# comment\n5 x\n").expect_err("no number").starts_with("line 3: the percentage is 'x'"));
        assert!(parse("0 0\n5\n").expect_err("missing").starts_with("line 2: the percentage is missing"));
        assert!(parse("0 0\n5 100 7\n").expect_err("too many").starts_with("line 2"));
    }
}
