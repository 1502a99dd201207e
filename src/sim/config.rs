//! The transport's configuration as a scenario's `[srd]` table changes it.

use simnet::experiment::{TcpConfig, TcpControl, Transport};
use srd::{CcChoice, CheckedConfig, Checksum, Config};

use super::quantity::{Duration, Rate, Size};
use super::scenario::Scenario;

/// The configuration that all cards of a scenario have.
pub(super) fn srd(scenario: &Scenario) -> Result<CheckedConfig, String> {
    let mut table = scenario.srd.clone();
    let preset = table.remove("preset").unwrap_or_else(|| "fabric".into());
    let mut config = match preset.as_str() {
        Some("fabric") => Config::fabric(),
        Some("host") => Config::default(),
        _ => return Err(format!("srd.preset is {preset}; there are \"fabric\" and \"host\"")),
    };
    // Everybody may talk to everybody.
    config.max_peers = simnet::Addr::HOSTS as u32;
    config.wire_overhead = scenario.network.wire_overhead;
    config.max_datagram =
        u16::try_from(scenario.network.mtu.saturating_sub(28)).map_err(|_| "network.mtu is above 9244")?;
    for (name, value) in &table {
        field(&mut config, name, value).map_err(|e| format!("srd.{name}: {e}"))?;
    }
    config.check().map_err(|e| format!("srd: {e}"))
}

fn field(c: &mut Config, name: &str, value: &toml::Value) -> Result<(), String> {
    match name {
        "paths" => c.paths = number(value)?,
        "path_pool" => c.path_pool = number(value)?,
        "max_datagram" => c.max_datagram = number(value)?,
        "packet_window" => c.packet_window = number(value)?,
        "message_window" => c.message_window = number(value)?,
        "max_partial_messages" => c.max_partial_messages = number(value)?,
        "ack_every" => c.ack_every = number(value)?,
        "reorder_packets" => c.reorder_packets = number(value)?,
        "max_ack_delay" => c.max_ack_delay = time(value)?,
        "reorder_time" => c.reorder_time = time(value)?,
        "granularity" => c.granularity = time(value)?,
        "rto_min" => c.rto_min = time(value)?,
        "rto_max" => c.rto_max = time(value)?,
        "initial_rtt" => c.initial_rtt = time(value)?,
        "target_delay" => c.target_delay = time(value)?,
        "burst_time" => c.burst_time = time(value)?,
        "peer_timeout" => c.peer_timeout = time(value)?,
        "initial_window" => c.initial_window = short_size(value)?,
        "max_burst" => c.max_burst = short_size(value)?,
        "share_period" => c.share_period = time(value)?,
        "link_rate" if value.as_str() == Some("unknown") => c.link_rate = None,
        "link_rate" => c.link_rate = Some(rate(value)? / 8),
        "cc" => match value.as_str() {
            Some("delay") => c.cc = CcChoice::Delay,
            _ => return Err(format!("{value} is no congestion control; there is \"delay\", and fixed_rate beside it")),
        },
        "fixed_rate" => {
            let bits = rate(value)?;
            let rate = bits / 8;
            if rate == 0 {
                return Err(format!("{bits} bit/s are less than a byte"));
            }
            c.cc = CcChoice::Fixed { rate, window: (rate / 1_000).max(1 << 20) };
        }
        "proportional" => c.tuning.proportional = float(value)?,
        "integral" => c.tuning.integral = float(value)?,
        "pull" => c.tuning.pull = float(value)?,
        "additive" => c.tuning.additive = float(value)?,
        "headroom" => c.tuning.headroom = float(value)?,
        "jitter" => c.tuning.jitter = float(value)?,
        "crc32c" => match value.as_bool() {
            Some(true) => c.checksum = Checksum::Crc32c,
            Some(false) => c.checksum = Checksum::Udp,
            None => return Err(format!("{value} is neither true nor false")),
        },
        _ => return Err("no such field of the configuration; docs/simulation.md lists them".into()),
    }
    Ok(())
}

fn number<T: TryFrom<i64>>(value: &toml::Value) -> Result<T, String> {
    value.as_integer().and_then(|n| T::try_from(n).ok()).ok_or_else(|| format!("{value} is no number in range"))
}

fn float(value: &toml::Value) -> Result<f64, String> {
    let number = value.as_float().or(value.as_integer().map(|n| n as f64));
    number.filter(|n| (0.0..=1e6).contains(n)).ok_or_else(|| format!("{value} is no number from 0 to 1000000"))
}

fn text(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn time(value: &toml::Value) -> Result<srd::Span, String> {
    Ok(Duration::parse(&text(value))?.0)
}

/// Bytes, fewer than 4 GiB.
fn short_size(value: &toml::Value) -> Result<u32, String> {
    let bytes = Size::parse(&text(value))?.0;
    u32::try_from(bytes).map_err(|_| format!("{bytes} bytes, at most {}", u32::MAX))
}

fn rate(value: &toml::Value) -> Result<u64, String> {
    Ok(Rate::parse(&text(value))?.0)
}

/// A transport by its name: `srd`, `tcp` (CUBIC), `tcp-newreno`, `tcp-cubic`, `tcp-dctcp`, `constant`.
pub(super) fn transport(scenario: &Scenario, name: &str) -> Result<Transport, String> {
    let mtu = scenario.tcp.mtu.unwrap_or(scenario.network.mtu);
    if !(256..=scenario.network.mtu).contains(&mtu) {
        return Err(format!("tcp.mtu is {mtu}, not within 256 and network.mtu"));
    }
    let (min_rto, initial_window) = (scenario.tcp.min_rto.0, scenario.tcp.initial_window);
    if min_rto < srd::Span::from_micros(1) {
        return Err("tcp.min_rto is less than 1 us, in which nothing can be answered".into());
    }
    if initial_window == 0 {
        return Err("tcp.initial_window is 0, at least 1 segment".into());
    }
    let tcp = |control| Transport::Tcp(TcpConfig { control, min_rto, initial_window, mtu });
    Ok(match name {
        "srd" => Transport::Srd,
        "tcp" | "tcp-cubic" => tcp(TcpControl::Cubic),
        "tcp-newreno" => tcp(TcpControl::NewReno),
        "tcp-dctcp" => tcp(TcpControl::Dctcp),
        "constant" => Transport::Constant { mtu },
        _ => {
            return Err(format!(
                "'{name}' is no transport; there are srd, tcp (which is tcp-cubic), tcp-newreno, tcp-dctcp, and constant for \
                 traffic in the background"
            ));
        }
    })
}

/// The name of a transport in reports.
pub(super) fn name(transport: &Transport) -> &'static str {
    match transport {
        Transport::Srd => "srd",
        Transport::Tcp(config) => match config.control {
            TcpControl::Cubic => "tcp-cubic",
            TcpControl::NewReno => "tcp-newreno",
            TcpControl::Dctcp => "tcp-dctcp",
        },
        Transport::Constant { .. } => "constant",
    }
}
