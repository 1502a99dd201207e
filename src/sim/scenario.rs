//! Scenario files: what stands in them, and what is wrong with them. `docs/simulation.md` explains every field.

use serde::{Deserialize, Serialize};
use simnet::WIRE_OVERHEAD;

use super::quantity::{Duration, Rate, Size};

/// A scenario as it stands in its file.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) title: String,
    #[serde(default)]
    pub(crate) assumptions: Vec<String>,
    #[serde(default = "default_limit")]
    pub(crate) limit: Duration,
    pub(crate) sample: Option<Duration>,
    #[serde(default = "yes")]
    pub(crate) warm: bool,
    #[serde(default)]
    pub(crate) ideal: Ideal,
    pub(crate) sweep: Option<String>,
    #[serde(default)]
    pub(crate) compare: Vec<String>,
    pub(crate) network: Network,
    #[serde(default)]
    pub(crate) hosts: Hosts,
    #[serde(default)]
    pub(crate) messages: Messages,
    pub(crate) traffic: Vec<Traffic>,
    #[serde(default)]
    pub(crate) fault: Vec<Fault>,
    #[serde(default)]
    pub(crate) srd: toml::Table,
    #[serde(default)]
    pub(crate) tcp: Tcp,
}

/// What a completion time is compared with.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ideal {
    /// The busiest cut that a flow crosses carries nothing but payload, all the time, for all its flows.
    #[default]
    Share,
    /// The flow has the network for itself.
    Alone,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NetworkKind {
    Star,
    LeafSpine,
    FatTree,
    Htsim,
    Hpcc,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Network {
    pub(crate) kind: NetworkKind,
    pub(crate) hosts: Option<usize>,
    pub(crate) leaves: Option<usize>,
    pub(crate) spines: Option<usize>,
    pub(crate) uplinks: Option<usize>,
    pub(crate) radix: Option<usize>,
    pub(crate) spine_uplinks: Option<usize>,
    pub(crate) cores: Option<usize>,
    pub(crate) file: Option<String>,
    #[serde(default = "default_rate")]
    pub(crate) rate: Rate,
    pub(crate) spine_rate: Option<Rate>,
    pub(crate) core_rate: Option<Rate>,
    #[serde(default = "default_delay")]
    pub(crate) delay: Duration,
    #[serde(default = "default_mtu")]
    pub(crate) mtu: u32,
    #[serde(default = "default_wire_overhead")]
    pub(crate) wire_overhead: u16,
    #[serde(default = "default_buffer")]
    pub(crate) buffer: Size,
    pub(crate) shared_buffer: Option<Size>,
    pub(crate) shared_alpha: Option<f64>,
    pub(crate) ecn: Option<(Size, Size)>,
    #[serde(default = "default_nic")]
    pub(crate) nic_buffer: Size,
    #[serde(default)]
    pub(crate) polarised: bool,
}

/// How real the hosts are.
#[derive(Deserialize, Clone, Copy, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hosts {
    pub(crate) descheduled_every: Option<Duration>,
    pub(crate) descheduled_for: Option<(Duration, Duration)>,
    pub(crate) drain: Option<Rate>,
    pub(crate) receive_queue: Option<usize>,
}

#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Messages {
    #[serde(default = "default_message")]
    pub(crate) size: Size,
    #[serde(default = "default_depth")]
    pub(crate) depth: u32,
    #[serde(default)]
    pub(crate) verbs: bool,
}

impl Default for Messages {
    fn default() -> Messages {
        Messages { size: default_message(), depth: default_depth(), verbs: false }
    }
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TrafficKind {
    Incast,
    Permutation,
    AllToAll,
    RingAllreduce,
    Pairs,
    Poisson,
    Htsim,
    Hpcc,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Traffic {
    pub(crate) kind: TrafficKind,
    pub(crate) size: Option<Size>,
    pub(crate) senders: Option<usize>,
    pub(crate) per_sender: Option<usize>,
    pub(crate) receiver: Option<usize>,
    pub(crate) hosts: Option<usize>,
    pub(crate) from: Option<Vec<usize>>,
    pub(crate) to: Option<Vec<usize>>,
    pub(crate) per_pair: Option<usize>,
    pub(crate) load: Option<f64>,
    pub(crate) duration: Option<Duration>,
    pub(crate) sizes: Option<String>,
    pub(crate) file: Option<String>,
    #[serde(default)]
    pub(crate) shared_card: bool,
    pub(crate) start: Option<Duration>,
    pub(crate) spread: Option<Duration>,
    pub(crate) rate: Option<Rate>,
    pub(crate) transport: Option<String>,
    #[serde(default)]
    pub(crate) background: bool,
    pub(crate) via: Option<Vec<String>>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    Dead,
    Slow,
    Lossy,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) at: Duration,
    pub(crate) until: Option<Duration>,
    /// `spine3`, `leaf0-spine3` (both directions), `leaf0->spine3` (one).
    pub(crate) on: Vec<String>,
    pub(crate) noticed_after: Option<Duration>,
    pub(crate) rate: Option<Rate>,
    pub(crate) loss_percent: Option<f64>,
    pub(crate) every: Option<Duration>,
    pub(crate) times: Option<u32>,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tcp {
    #[serde(default = "default_rto")]
    pub(crate) min_rto: Duration,
    #[serde(default = "default_window")]
    pub(crate) initial_window: u32,
    pub(crate) mtu: Option<u32>,
}

impl Default for Tcp {
    fn default() -> Tcp {
        Tcp { min_rto: default_rto(), initial_window: default_window(), mtu: None }
    }
}

impl Scenario {
    /// Reads a scenario; the error says the line and what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Scenario, String> {
        toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())
    }

    /// Reads a scenario in which `path` (`network.buffer`, `traffic.size`, `srd.paths`, `traffic.1.rate`) has another value.
    pub(crate) fn with(text: &str, changes: &[(String, String)]) -> Result<Scenario, String> {
        let mut table: toml::Table = text.parse().map_err(|e: toml::de::Error| e.to_string().trim_end().to_owned())?;
        for (path, value) in changes {
            set(&mut table, path, value)?;
        }
        table.try_into().map_err(|e: toml::de::Error| {
            let e = e.to_string();
            match changes.is_empty() {
                true => e,
                false => format!(
                    "with {}: {}",
                    changes.iter().map(|(p, v)| format!("{p}={v}")).collect::<Vec<_>>().join(" "),
                    e.trim_end()
                ),
            }
        })
    }
}

/// Sets a value by its path. A step into a list without a number is its first item.
fn set(table: &mut toml::Table, path: &str, value: &str) -> Result<(), String> {
    let (last, steps) = path.rsplit_once('.').map_or((path, None), |(s, l)| (l, Some(s)));
    let mut at = table;
    let mut steps = steps.into_iter().flat_map(|s| s.split('.')).peekable();
    while let Some(step) = steps.next() {
        let next = at.entry(step.to_owned()).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        let item = match next {
            toml::Value::Array(items) => {
                let index = steps.peek().and_then(|s| s.parse::<usize>().ok());
                if index.is_some() {
                    steps.next();
                }
                let (i, n) = (index.unwrap_or(0), items.len());
                items.get_mut(i).ok_or_else(|| format!("'{path}': there are {n} of '{step}'"))?
            }
            other => other,
        };
        at = item.as_table_mut().ok_or_else(|| format!("'{path}': '{step}' has no parts"))?;
    }
    at.insert(last.to_owned(), literal(value));
    Ok(())
}

/// A kind as it stands in scenario files.
pub(crate) fn as_written(kind: impl Serialize) -> String {
    match toml::Value::try_from(kind) {
        Ok(toml::Value::String(word)) => word,
        other => unreachable!("a kind is a word: {other:?}"),
    }
}

/// A value as TOML would read it; what is none is text.
fn literal(text: &str) -> toml::Value {
    let parsed = format!("x = {text}").parse::<toml::Table>().ok().and_then(|mut t| t.remove("x"));
    parsed.unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

fn yes() -> bool {
    true
}
fn default_limit() -> Duration {
    Duration(srd::Span::from_millis(100))
}
fn default_rate() -> Rate {
    Rate(100_000_000_000)
}
fn default_delay() -> Duration {
    Duration(srd::Span::from_micros(1))
}
fn default_mtu() -> u32 {
    9_000
}
fn default_wire_overhead() -> u16 {
    WIRE_OVERHEAD as u16
}
fn default_buffer() -> Size {
    Size(1_000_000)
}
fn default_nic() -> Size {
    Size(64_000_000)
}
fn default_message() -> Size {
    Size(1 << 20)
}
fn default_depth() -> u32 {
    4
}
fn default_rto() -> Duration {
    Duration(srd::Span::from_millis(50))
}
fn default_window() -> u32 {
    10
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str =
        "title = \"t\"\n[network]\nkind = \"star\"\nhosts = 3\n[[traffic]]\nkind = \"incast\"\nsize = \"1MB\"\n";

    #[test]
    fn defaults_are_the_documented_ones() {
        let s = Scenario::parse(SMALL).expect("valid");
        assert_eq!((s.network.rate, s.network.mtu, s.network.buffer), (Rate(100_000_000_000), 9_000, Size(1_000_000)));
        assert!(s.warm && s.ideal == Ideal::Share && s.tcp.min_rto == default_rto());
    }

    #[test]
    fn errors_name_line_and_field() {
        for (from, to, expected) in [
            ("hosts = 3", "hosts = 3\ncolour = 1", "colour"),
            ("\"1MB\"", "\"1 parsec\"", "'1 parsec' is no size"),
            ("\"incast\"", "\"rain\"", "unknown variant `rain`"),
            ("title = \"t\"", "", "missing field `title`"),
            ("hosts = 3", "hosts = \"x\"", "expected usize"),
            ("hosts = 3", "rate = 100", "100 needs a unit"),
        ] {
            let error = Scenario::parse(&SMALL.replace(from, to)).expect_err(expected);
            assert!(error.contains(expected) && error.contains("line "), "{error}");
        }
    }

    #[test]
    fn values_are_set_by_path() {
        let change = |p: &str, v: &str| vec![(p.to_owned(), v.to_owned())];
        let s = Scenario::with(SMALL, &change("traffic.size", "64KB")).expect("valid");
        assert_eq!(s.traffic[0].size, Some(Size(64_000)));
        let s = Scenario::with(SMALL, &change("srd.paths", "16")).expect("valid");
        assert_eq!(s.srd["paths"].as_integer(), Some(16));
        let s = Scenario::with(SMALL, &change("warm", "false")).expect("valid");
        assert!(!s.warm);
        assert!(Scenario::with(SMALL, &change("traffic.3.size", "1")).expect_err("one only").contains("there are 1"));
        assert!(
            Scenario::with(SMALL, &change("network.hosts", "x")).expect_err("no number").contains("network.hosts=x")
        );
    }
}
